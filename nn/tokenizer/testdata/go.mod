// Texts and tokenizers for the tests of package tokenizer: a module of its own, so that go get does not download it.
module github.com/flashkit-go/flashkit/nn/tokenizer/testdata

go 1.25.0

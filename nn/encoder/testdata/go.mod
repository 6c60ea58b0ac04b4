// A tiny model for the tests of package encoder: a module of its own, so that go get does not download it.
module github.com/flashkit-go/flashkit/nn/encoder/testdata

go 1.25.0

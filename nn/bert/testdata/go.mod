// A tiny model for the tests of package bert: a module of its own, so that go get does not download it.
module github.com/flashkit-go/flashkit/nn/bert/testdata

go 1.25.0

// Vectors of the tests of package nn: a module of its own, so that go get does not download it.
module github.com/flashkit-go/flashkit/nn/testdata

go 1.25.0

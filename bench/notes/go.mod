// Notes of measurements: a module of its own, so that go get does not download them.
module github.com/flashkit-go/flashkit/bench/notes

go 1.25.0

// The ES module and its tests: a module of its own, so that go get does not download them.
module github.com/flashkit-go/flashkit/backends/wasm/js

go 1.25.0

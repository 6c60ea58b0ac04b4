// The example report and its results: a module of its own, so that go get does not download it.
module github.com/flashkit-go/flashkit/docs/report

go 1.25.0

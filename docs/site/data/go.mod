// What the page of docs/site shows: a module of its own, so that go get does not download it.
module github.com/flashkit-go/flashkit/docs/site/data

go 1.25.0

// Scripts for work on the repository: a module of its own, so that go get does not download it.
module github.com/flashkit-go/flashkit/tools

go 1.25.0

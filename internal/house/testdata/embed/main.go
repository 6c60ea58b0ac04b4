// Embed is a program that embeds texts, for TestSizesOfPrograms.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/flashkit-go/flashkit/nn/encoder"
)

func main() {
	ctx := context.Background()
	e, err := encoder.Open(ctx, os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	defer e.Close()
	fmt.Println(e.Embed(ctx, os.Args[2:]))
}

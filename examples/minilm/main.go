// Minilm prints the three texts that are nearest to a query:
//
//	minilm FOLDER QUERY TEXT...
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/flashkit-go/flashkit/nn/encoder"
)

func main() {
	if len(os.Args) < 4 {
		log.Fatal("usage: minilm FOLDER QUERY TEXT...")
	}
	e, err := encoder.Open(context.Background(), os.Args[1]) // a model's folder
	if err != nil {
		log.Fatal(err)
	}
	vectors, err := e.Embed(context.Background(), os.Args[2:])
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range encoder.Nearest(vectors[0], vectors[1:], 3) {
		fmt.Printf("%.4f  %s\n", m.Cosine, os.Args[3+m.Index])
	}
}

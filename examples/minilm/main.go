// Minilm prints the cosine similarity of the first text and each text, by a published model's folder:
//
//	minilm FOLDER TEXT...
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/flashkit-go/flashkit/nn/encoder"
)

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: minilm FOLDER TEXT...")
	}
	e, err := encoder.Open(context.Background(), os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()
	vectors, err := e.Embed(context.Background(), os.Args[2:])
	if err != nil {
		log.Fatal(err)
	}
	for i, v := range vectors {
		dot := float32(0) // the cosine, as the model's vectors have length 1
		for j := range v {
			dot += vectors[0][j] * v[j]
		}
		fmt.Printf("%.4f  %s\n", dot, os.Args[2+i])
	}
}

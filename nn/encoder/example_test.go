package encoder_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"github.com/flashkit-go/flashkit/nn/encoder"
)

// The three texts that are nearest to a query. A real model is a downloaded folder, such as
// all-MiniLM-L6-v2. The model of the tests has random weights.
func Example() {
	ctx := context.Background()
	e, err := encoder.Open(ctx, "testdata/tiny")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close()
	texts := []string{"The weather is cold.", "A man eats pasta.", "A woman plays the guitar.", "The sea is cold."}
	vectors, err := e.Embed(ctx, append(texts, "She sings."))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range encoder.Nearest(vectors[4], vectors[:4], 3) {
		fmt.Printf("%.2f %s\n", m.Cosine, texts[m.Index])
	}
	// Output:
	// 0.94 A man eats pasta.
	// 0.92 The weather is cold.
	// 0.91 A woman plays the guitar.
}

// An error names the file that is missing.
func ExampleOpen() {
	_, err := encoder.Open(context.Background(), "testdata/none")
	fmt.Println(errors.Is(err, fs.ErrNotExist))
	// Output: true
}

// A text of too many tokens is an error, which names the text, instead of being truncated.
func ExampleOpenWith() {
	ctx := context.Background()
	e, err := encoder.OpenWith(ctx, "testdata/tiny", encoder.Options{Precision: "bf16-weights", MaxTokens: 8, Overflow: encoder.Refuse})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close()
	_, err = e.Embed(ctx, []string{"It is cold.", "It is cold in the harbor, and the sea is cold."})
	fmt.Println(e.Tokens("It is cold."), err)
	// Output: 6 flashkit: texts[1] = 15 tokens: must have at most 8
}

// Three products stay in float32, so that the cosines of the texts' vectors are at least 0.9998.
func ExampleKeepFloat32() {
	ctx := context.Background()
	texts := []string{"It is cold.", "The weather is cold.", "A woman plays the guitar.", "A man eats pasta."}
	o := encoder.Options{Precision: "int8", Calibration: texts}
	var err error
	if o.Float32, err = encoder.KeepFloat32(ctx, "testdata/tiny", o, texts, 0.9998); err != nil {
		fmt.Println(err)
		return
	}
	for _, name := range o.Float32 {
		fmt.Println(name)
	}
	e, err := encoder.OpenWith(ctx, "testdata/tiny", o)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close()
	// Output:
	// encoder.layer.0.attention.output.dense.weight
	// encoder.layer.1.attention.output.dense.weight
	// encoder.layer.1.attention.self.query.weight
}

// Progress is called after each group of texts.
func ExampleOptions() {
	ctx := context.Background()
	o := encoder.Options{Workers: 1, Progress: func(done, total int) { fmt.Println(done, "of", total) }}
	e, err := encoder.OpenWith(ctx, "testdata/tiny", o)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close()
	if _, err := e.Embed(ctx, []string{"rain", "snow"}); err != nil {
		fmt.Println(err)
	}
	// Output: 2 of 2
}

// One Encoder serves all goroutines of a program.
func ExampleEncoder() {
	ctx := context.Background()
	e, err := encoder.Open(ctx, "testdata/tiny")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close()
	var vectors [2][][]float32
	var wg sync.WaitGroup
	for i := range vectors {
		wg.Go(func() {
			var err error
			if vectors[i], err = e.Embed(ctx, []string{"It is cold."}); err != nil {
				fmt.Println(err)
			}
		})
	}
	wg.Wait()
	fmt.Println(slices.Equal(vectors[0][0], vectors[1][0]), e.Dim(), e.MaxTokens(), e.Tokens("It is cold."))
	// Output: true 32 40 6
}

// A list of any length is read as it is needed.
func ExampleEncoder_EmbedSeq() {
	ctx := context.Background()
	e, err := encoder.Open(ctx, "testdata/tiny")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close()
	n := 0
	for v, err := range e.EmbedSeq(ctx, slices.Values([]string{"sun", "rain", "snow"})) {
		if err != nil {
			fmt.Println(err)
			return
		}
		n += len(v)
	}
	fmt.Println(n)
	// Output: 96
}

// A program with a tokenizer of its own passes token ids.
func ExampleEncoder_EmbedTokens() {
	ctx := context.Background()
	e, err := encoder.Open(ctx, "testdata/tiny")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close()
	ids, err := e.EmbedTokens(ctx, [][]int32{{2, 22, 3}})
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := e.Embed(ctx, []string{"rain"})
	fmt.Println(slices.Equal(ids[0], text[0]), err)
	// Output: true <nil>
}

// A retriever embeds queries and documents with the prompts that the model's files name.
func ExampleEncoder_EmbedPrompt() {
	ctx := context.Background()
	e, err := encoder.Open(ctx, "testdata/tiny")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close()
	_, err = e.EmbedPrompt(ctx, "query", []string{"Will it rain?"})
	fmt.Println(err)
	// Output: flashkit: prompt = "query": must be a prompt of the model: []
}

// A model of vectors has no scores: rerankers and classifiers have.
func ExampleClass() {
	ctx := context.Background()
	e, err := encoder.Open(ctx, "testdata/tiny")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close()
	classes, err := e.Classify(ctx, []string{"The weather is fine."})
	for _, c := range slices.Concat(classes...) {
		fmt.Println(c.Label, c.Score)
	}
	fmt.Println(err)
	// Output: flashkit: Encoder = no labels: must have labels: the model is no sequence classifier
}

// A model of vectors has no labels of tokens: token classifiers have.
func ExampleTag() {
	ctx := context.Background()
	e, err := encoder.Open(ctx, "testdata/tiny")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close()
	tags, err := e.Tag(ctx, []string{"The weather is fine."})
	for _, tag := range slices.Concat(tags...) {
		fmt.Println(tag.ID, tag.Label, tag.Score)
	}
	fmt.Println(err)
	// Output: flashkit: Encoder = no labels: must have labels of tokens: the model is no token classifier
}

// Overflow is an option: by default, texts that are too long are truncated.
func ExampleOverflow() {
	fmt.Println(encoder.Options{}.Overflow == encoder.Truncate)
	// Output: true
}

// Vectors may come from a database: Nearest needs no Encoder.
func ExampleNearest() {
	fmt.Println(encoder.Nearest([]float32{1, 0}, [][]float32{{0, 2}, {3, 0}, {1, 1}}, 2))
	// Output: [{1 1} {2 0.70710677}]
}

// A Match has the index of a vector.
func ExampleMatch() {
	m := encoder.Nearest([]float32{0, 1}, [][]float32{{1, 0}, {0, 5}}, 1)[0]
	fmt.Println(m.Index, m.Cosine)
	// Output: 1 1
}

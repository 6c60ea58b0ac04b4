package bert_test

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/nn/bert"
	"github.com/flashkit-go/flashkit/safetensors"
)

const config = `{"model_type": "bert", "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
	"intermediate_size": 56, "max_position_embeddings": 40, "type_vocab_size": 2, "hidden_act": "gelu"}`

// Keys that the file lacks have the defaults of the transformers library.
func ExampleParseConfig() {
	c, err := bert.ParseConfig([]byte(config))
	fmt.Println(c.Layers, c.Hidden, c.Heads, err)
	// Output: 2 32 4 <nil>
}

// load returns the model of the tests.
func load() *bert.Model {
	c, err := bert.ParseConfig([]byte(config))
	if err != nil {
		panic(err)
	}
	weights, err := os.ReadFile("testdata/tiny.safetensors")
	if err != nil {
		panic(err)
	}
	f, err := safetensors.Parse(weights)
	if err != nil {
		panic(err)
	}
	m, err := bert.Load(c, f)
	if err != nil {
		panic(err)
	}
	return m
}

// Weights as bf16 take half the memory. A file's config says nothing about that.
func ExampleModel() {
	c, err := bert.ParseConfig([]byte(config))
	if err != nil {
		panic(err)
	}
	c.Precision = "bf16-weights"
	weights, err := os.ReadFile("testdata/tiny.safetensors")
	if err != nil {
		panic(err)
	}
	f, err := safetensors.Parse(weights)
	if err != nil {
		panic(err)
	}
	m, err := bert.Load(c, f)
	if err != nil {
		panic(err)
	}
	fmt.Println(m.Config().Layers, "layers with", m.Config().Precision)
	// Output: 2 layers with bf16-weights
}

// The files of a model are config.json and model.safetensors.
func ExampleLoad() {
	m := load()
	fmt.Println(m.Config().Hidden)
	// Output: 32
}

// One Encoder serves all goroutines of a program, each with its own Step.
func ExampleEncoder() {
	d, err := dispatch.Default(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	e := bert.NewEncoder(load(), d)
	defer e.Close()

	var vectors [2][32]float32
	var wg sync.WaitGroup
	for i := range vectors {
		wg.Go(func() {
			s := e.NewStep()
			s.Workers = 1 // the goroutines share the processor
			err := s.Vectors(context.Background(), vectors[i][:], bert.Batch{IDs: []int32{2, 17, 3}, Starts: []int32{0, 3}})
			if err != nil {
				fmt.Println(err)
			}
		})
	}
	wg.Wait()
	fmt.Println(vectors[0] == vectors[1])
	// Output: true
}

// A batch is checked before the model runs.
func ExampleNewEncoder() {
	d, err := dispatch.Default(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	e := bert.NewEncoder(load(), d) // the Dispatcher remains the program's
	defer e.Close()
	out := make([]float32, 32)
	fmt.Println(e.NewStep().Vectors(context.Background(), out, bert.Batch{IDs: []int32{2, 99}, Starts: []int32{0, 2}}))
	// Output: flashkit: Batch.IDs[1] = 99: must be from 0 to 49
}

// Two sentences of different lengths, packed.
func ExampleStep_Vectors() {
	ctx := context.Background()
	d, err := dispatch.Default(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	e := bert.NewEncoder(load(), d)
	defer e.Close()

	s := e.NewStep()
	ids := []int32{2, 17, 3, 2, 17, 30, 9, 3}
	out := make([]float32, 2*32)
	if err := s.Vectors(ctx, out, bert.Batch{IDs: ids, Starts: []int32{0, 3, 8}}); err != nil {
		fmt.Println(err)
		return
	}
	similarity := float32(0)
	for i := range 32 {
		similarity += out[i] * out[32+i]
	}
	fmt.Printf("%.3f\n", similarity)
	// Output: 0.941
}

// A row for each token, for a classifier of tokens.
func ExampleStep_Hidden() {
	ctx := context.Background()
	d, err := dispatch.Default(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	e := bert.NewEncoder(load(), d)
	defer e.Close()

	out := make([]float32, 2*32) // a row for each token
	err = e.NewStep().Hidden(ctx, out, bert.Batch{IDs: []int32{5, 6}, Starts: []int32{0, 2}})
	fmt.Printf("%.3f %v\n", out[:2], err)
	// Output: [-0.218 0.258] <nil>
}

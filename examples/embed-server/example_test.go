package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"
)

// A client in Go: it posts texts and finds those that mean the same as the first.
func Example() {
	s := NewServer(known(&fake{dim: 3}, false), nil, roomy)
	defer s.Drain(context.Background())
	server := httptest.NewServer(NewHandler(s)) // in its place, the address of embed-server
	defer server.Close()

	body := `{"model":"small","input":["a cat sleeps","a dog sleeps","rain","a cat sleeps"]}`
	r, err := http.NewRequest(http.MethodPost, server.URL+"/v1/embeddings", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	r.Header.Set("X-Timeout-Ms", fmt.Sprint(time.Second.Milliseconds()))
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		panic(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Data  []struct{ Embedding []float32 }
		Usage struct {
			Tokens int `json:"total_tokens"`
		}
		Error struct{ Message string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		panic(err)
	}
	if resp.StatusCode != http.StatusOK {
		panic(answer.Error.Message) // it names the field
	}
	fmt.Println(answer.Usage.Tokens, "tokens,", len(answer.Data), "vectors")
	first := answer.Data[0].Embedding
	for i, x := range answer.Data {
		dot := 0.0
		for j := range first {
			dot += float64(first[j]) * float64(x.Embedding[j])
		}
		if dot > 0.999 {
			fmt.Println("text", i, "is like the first")
		}
	}
	// Output:
	// 18 tokens, 4 vectors
	// text 0 is like the first
	// text 3 is like the first
}

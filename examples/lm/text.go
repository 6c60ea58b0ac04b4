package main

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/flashkit-go/flashkit/nn"
)

// plays are Hamlet, A Midsummer Night's Dream and The Tempest. README.md names their source.
//
//go:embed plays.txt.gz
var plays []byte

// A corpus is a text that is converted to tokens, one per byte.
type corpus struct {
	ids     []int32
	symbols []byte // distinct bytes of the text; a token is an index into symbols
}

// readCorpus reads a file, or the plays if file is "".
func readCorpus(file string) (*corpus, error) {
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		return newCorpus(text)
	}
	r, err := gzip.NewReader(bytes.NewReader(plays))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	return newCorpus(text)
}

func newCorpus(text []byte) (*corpus, error) {
	if len(text) < 2 {
		return nil, errors.New("the text is empty")
	}
	var there [256]bool
	for _, b := range text {
		there[b] = true
	}
	c := new(corpus)
	var token [256]int32
	for b, is := range there {
		if is {
			token[b] = int32(len(c.symbols))
			c.symbols = append(c.symbols, byte(b))
		}
	}
	for _, b := range text {
		c.ids = append(c.ids, token[b])
	}
	return c, nil
}

// batch fills tokens with sequences from random positions of the text, and targets with each
// token's successor. The positions depend only on the seed and the step.
func (c *corpus) batch(tokens nn.Tokens, targets []int32, seed, step uint64) error {
	places := len(c.ids) - tokens.T
	if places < 1 {
		return fmt.Errorf("the text has %d bytes, and a sequence takes %d", len(c.ids), tokens.T+1)
	}
	for b := range tokens.Batch {
		at := int(mix(seed<<32^step<<12^uint64(b)) % uint64(places))
		copy(tokens.IDs[b*tokens.T:][:tokens.T], c.ids[at:])
		copy(targets[b*tokens.T:][:tokens.T], c.ids[at+1:])
	}
	return nil
}

// mix returns a pseudorandom number: one step of SplitMix64 (Steele, Lea and Flood, 2014), which is
// easy to repeat in another language.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

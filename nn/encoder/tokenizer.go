package encoder

import "errors"

// An encoding is the tokens of a text.
type encoding struct {
	IDs, Types []int32
	Tokens     int // before truncation
}

// A tokenizer turns texts into token ids.
type tokenizer interface {
	Len() int // 1 + the greatest id
	ID(token string) (int32, bool)
	Encode(e *encoding, max int, text string)
	EncodePair(e *encoding, max int, a, b string)
	MaxTokens() int // the limit that the tokenizer's files set, or 0
}

// openTokenizer reads the tokenizer of a folder.
var openTokenizer = func(dir string) (tokenizer, error) { return nil, errors.New(dir + ": no tokenizer yet") }

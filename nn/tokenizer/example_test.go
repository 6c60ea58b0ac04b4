package tokenizer_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/flashkit-go/flashkit/nn/tokenizer"
)

// A small tokenizer.json. The files of published models have the same form.
const file = `{
	"added_tokens": [{"id": 2, "content": "[MASK]", "special": true, "normalized": false}],
	"normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
	"pre_tokenizer": {"type": "BertPreTokenizer"},
	"post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 0], "sep": ["[SEP]", 1]},
	"model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
		"vocab": {"[CLS]": 0, "[SEP]": 1, "[MASK]": 2, "[UNK]": 3, "the": 4, "play": 5, "##ing": 6, "cafe": 7, "!": 8}}
}`

func small() *tokenizer.Tokenizer {
	t, err := tokenizer.Parse([]byte(file))
	if err != nil {
		log.Fatal(err)
	}
	return t
}

func ExampleParse() {
	_, err := tokenizer.Parse([]byte(`{"normalizer": {"type": "Upper"}, "model": {}}`))
	fmt.Println(err)
	// Output:
	// tokenizer.json: normalizer.type: "Upper" is not supported
}

func ExampleOpen() {
	dir, err := os.MkdirTemp("", "model")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	vocab := "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nplay\n##ing\n"
	if err := os.WriteFile(filepath.Join(dir, "vocab.txt"), []byte(vocab), 0o666); err != nil {
		log.Fatal(err)
	}
	t, err := tokenizer.Open(dir)
	if err != nil {
		log.Fatal(err)
	}
	var e tokenizer.Encoding
	t.Encode(&e, 0, "The playing")
	fmt.Println(e.IDs)
	// Output:
	// [2 5 6 7 3]
}

func ExampleTokenizer_Encode() {
	t := small()
	var e tokenizer.Encoding // reused for the next text
	t.Encode(&e, 0, "The playing Caf\u00e9!")
	fmt.Println(e.IDs, e.Tokens)
	t.Encode(&e, 4, "The playing Caf\u00e9!")
	fmt.Println(e.IDs, e.Tokens)
	// Output:
	// [0 4 5 6 7 8 1] 7
	// [0 4 5 1] 7
}

func ExampleTokenizer_EncodePair() {
	t := small()
	var e tokenizer.Encoding
	t.EncodePair(&e, 0, "The play", "[MASK]!")
	fmt.Println(e.IDs)
	fmt.Println(e.Types)
	// Output:
	// [0 4 5 1 2 8 1]
	// [0 0 0 0 1 1 1]
}

func ExampleTokenizer_ID() {
	fmt.Println(small().ID("##ing"))
	fmt.Println(small().ID("ing"))
	// Output:
	// 6 true
	// 0 false
}

func ExampleTokenizer_Len() {
	fmt.Println(small().Len())
	// Output:
	// 9
}

func ExampleTokenizer_MaxTokens() {
	fmt.Println(small().MaxTokens()) // the file has no limit
	// Output:
	// 0
}

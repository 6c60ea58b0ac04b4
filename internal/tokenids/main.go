// Tokenids prints the token ids of texts. tools/tokenizer_compare.py compares them with the ids of
// Hugging Face's tokenizers.
//
//	tokenids FOLDER|tokenizer.json
//
// Each line of the standard input is a text in hexadecimal, or two texts with a space between them.
package main

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/flashkit-go/flashkit/nn/tokenizer"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "tokenids:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("want a tokenizer.json, got %q", args)
	}
	file, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	t, err := tokenizer.Parse(file)
	if err != nil {
		return err
	}
	lines, w := bufio.NewScanner(in), bufio.NewWriter(out)
	lines.Buffer(nil, 1<<26)
	var e tokenizer.Encoding
	for lines.Scan() {
		a, b, two := strings.Cut(lines.Text(), " ")
		text, err := hex.DecodeString(a)
		if err != nil {
			return err
		}
		second, err := hex.DecodeString(b)
		if err != nil {
			return err
		}
		if two {
			t.EncodePair(&e, 0, string(text), string(second))
		} else {
			t.Encode(&e, 0, string(text))
		}
		for _, id := range e.IDs {
			w.WriteString(strconv.Itoa(int(id)))
			w.WriteByte(' ')
		}
		w.WriteByte('\n')
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return w.Flush()
}

// Package prose counts expressions that hide a sentence's noun: "what a call takes" in place of
// "the call's arguments". It reads comments of Go, C and CUDA, and text of Markdown.
package prose

import (
	"go/scanner"
	"go/token"
	"path"
	"regexp"
	"strings"
)

// Expressions are the counted expressions.
var Expressions = []struct {
	Name    string
	Pattern *regexp.Regexp
}{
	{"what", regexp.MustCompile(`(?i)\bwhat\b`)},
	{"those of", regexp.MustCompile(`(?i)\bthose (of|that|which|who|with|in|for|from)\b|\b(is|are|as|than) those\b`)},
	{"that of", regexp.MustCompile(`(?i)\bthat of\b`)},
	{"so many", regexp.MustCompile(`(?i)\b(so|as) (many|much)\b`)},
	{"nobody", regexp.MustCompile(`(?i)\b(nobody|whoever)\b`)},
	{"beside", regexp.MustCompile(`(?i)\bbesides?\b`)},
	{"says", regexp.MustCompile(`(?i)\b(says|said|say that)\b`)},
	{"lies", regexp.MustCompile(`(?i)\b(lie|lies|lay)\b`)},
	{"at hand", regexp.MustCompile(`(?i)\bat hand\b|\bin vain\b|\ba given one\b|\ball the same\b`)},
	{"is how", regexp.MustCompile(`(?i)\bis (how|where)\b`)},
}

// Count is the number of words and expressions in a text. Found holds the number of hits of each of
// Expressions.
type Count struct {
	Words, Hits int
	Found       []int
}

// Add adds the expressions of text to c.
func (c *Count) Add(text string) {
	if c.Found == nil {
		c.Found = make([]int, len(Expressions))
	}
	c.Words += len(strings.Fields(text))
	text = strings.Join(strings.Fields(text), " ") // an expression may cross a line break
	for i, e := range Expressions {
		n := len(e.Pattern.FindAllStringIndex(text, -1))
		c.Found[i] += n
		c.Hits += n
	}
}

// Rate returns the expressions per 1,000 words.
func (c *Count) Rate() float64 { return 1000 * float64(c.Hits) / float64(max(c.Words, 1)) }

// Text returns the prose of a file by its extension: comments of Go, C and CUDA, and Markdown
// without code. Other files have none.
func Text(name, text string) string {
	switch path.Ext(name) {
	case ".go":
		return goComments([]byte(text))
	case ".c", ".h", ".cu", ".cuh":
		return cComments(text)
	case ".md":
		return code.ReplaceAllString(text, "x")
	}
	return ""
}

var directive = regexp.MustCompile(`^//(go:|export |line )`)

func goComments(data []byte) string {
	var s scanner.Scanner
	set := token.NewFileSet()
	s.Init(set.AddFile("", -1, len(data)), data, nil, scanner.ScanComments)
	var text strings.Builder
	for {
		_, tok, lit := s.Scan()
		if tok == token.EOF {
			return text.String()
		}
		if tok == token.COMMENT && !directive.MatchString(lit) {
			text.WriteString(strings.Trim(lit, "/*"))
			text.WriteByte('\n')
		}
	}
}

// cTokens matches C strings, characters and comments, so that none begins within another.
var cTokens = regexp.MustCompile(`(?s)"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|//[^\n]*|/\*.*?\*/`)

func cComments(data string) string {
	var text strings.Builder
	for _, m := range cTokens.FindAllString(data, -1) {
		if m[0] == '/' {
			text.WriteString(strings.Trim(m, "/*"))
			text.WriteByte('\n')
		}
	}
	return text.String()
}

// code matches the three forms of code in Markdown: fenced blocks, code within a line, and indented
// lines.
var code = regexp.MustCompile("(?s:```.*?```)|`[^`\n]*`|(?m:^    .*$)")

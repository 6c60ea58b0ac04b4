package tokenizer

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"
)

// hostile are code points that interact with the text around them, by order, decomposition or
// absence.
var hostile = [][2]rune{
	{0x300, 0x36F}, {0x591, 0x5C7}, {0x610, 0x61A}, {0x64B, 0x65F}, {0x93C, 0x94D}, {0x9BE, 0x9CD}, {0xE31, 0xE4E}, {0xF71, 0xF84}, // marks
	{0x302A, 0x302F}, {0x3099, 0x309A}, {0x1D165, 0x1D172}, {0x16FF0, 0x16FF1}, {0x20D0, 0x20F0}, {0x1AB0, 0x1ACE}, {0x34F, 0x34F}, {0xFE00, 0xFE2F},
	{0x1100, 0x11FF}, {0x3131, 0x318E}, {0xFFA0, 0xFFDC}, {0xAC00, 0xD7A3}, {0xA960, 0xA97C}, {0xD7B0, 0xD7FB}, // Hangul and its vowels
	{0xC0, 0x17F}, {0x1E00, 0x1FFE}, {0x340, 0x344}, {0x2126, 0x212B}, {0x1D15E, 0x1D164}, {0x1D1BB, 0x1D1C0}, {0xFB1D, 0xFB4E}, // decompositions
	{0x3300, 0x33FF}, {0xFF01, 0xFF9F}, {0x2460, 0x24FF}, {0xFB00, 0xFB06}, {0x1D400, 0x1D7FF}, // compatibility characters
	{0x4E00, 0x4E20}, {0xF900, 0xFAD9}, {0x2F800, 0x2FA1D}, {0x3041, 0x30FF}, {0x2B820, 0x2B930}, // ideographs
	{0x200B, 0x200F}, {0x2028, 0x202E}, {0x2060, 0x206F}, {0xFEFF, 0xFEFF}, {0xE0001, 0xE007F}, {0x80, 0xA0}, {0xFFF0, 0xFFFF}, // cleaned, and spaces
	{0xE000, 0xE010}, {0x378, 0x379}, {0x10FFFE, 0x10FFFF}, {0xD800, 0xDFFF}, // private, unassigned, surrogates
	{' ', '~'}, {'a', 'c'}, {'A', 'C'}, {0, 0x20},
}

// randomText returns a text of a seed, of bytes that may be no UTF-8.
func randomText(r *rand.Rand) string {
	var b []byte
	for n := 1 + r.IntN(24); n > 0; n-- {
		block := hostile[r.IntN(len(hostile))]
		if r.IntN(3) == 0 {
			block = hostile[r.IntN(16)]
		}
		c := block[0] + r.Int32N(block[1]-block[0]+1)
		times := 1
		if r.IntN(40) == 0 {
			times = 1 + r.IntN(120)
		}
		for ; times > 0; times-- {
			b = utf8.AppendRune(b, c)
		}
		switch r.IntN(30) {
		case 0:
			b = append(b, byte(r.IntN(256)))
		case 1:
			b = b[:len(b)-1]
		case 2:
			b = append(b, []string{"[MASK]", "[CLS]", " ", "ab", "[", "e\u0301"}[r.IntN(6)]...)
		case 3: // a surrogate in UTF-8
			b = append(b, 0xED, 0xA0+byte(r.IntN(32)), 0x80+byte(r.IntN(64)))
		}
	}
	return string(b)
}

// slow is a literal copy of the reference for BERT: each step processes the whole text.
func slow(t *Tokenizer, text string) []int32 {
	text = string([]rune(text))
	ids := []int32{t.single.pieces[0].ids[0]}
	for text != "" {
		at, id, n := len(text), int32(-1), 0
		for _, s := range []string{"[CLS]", "[SEP]", "[UNK]", "[MASK]", "[PAD]"} {
			if i := strings.Index(text, s); i >= 0 && i < at {
				at, n = i, len(s)
				id, _ = t.ID(s)
			}
		}
		n0 := t.normalizers[0].(bertNormalizer)
		for _, word := range strings.FieldsFunc(slowNormal(text[:at], n0.lower), isSpace) {
			ids = append(ids, slowPieces(t.model.(*wordPiece), word)...)
		}
		if id >= 0 {
			ids = append(ids, id)
		}
		text = text[at+n:]
	}
	return append(ids, t.single.pieces[2].ids[0])
}

func slowNormal(text string, lowercase bool) string {
	var clean []rune
	for _, r := range text {
		switch {
		case r == '\t' || r == '\n' || r == '\r':
			clean = append(clean, ' ')
		case classOf(r)&control != 0:
		case isSpace(r):
			clean = append(clean, ' ')
		case isIdeograph(r):
			clean = append(clean, ' ', r, ' ')
		default:
			clean = append(clean, r)
		}
	}
	if lowercase {
		clean = slowDecomposed(clean)
	}
	var b strings.Builder
	for _, r := range clean {
		if lowercase && classOf(r)&nonspacing != 0 {
			continue
		}
		if lowercase {
			r = []rune(string(appendLower(nil, r)))[0]
		}
		if isPunct(r) {
			b.WriteString(" " + string(r) + " ")
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// slowDecomposed is NFD without a limit on the run length. Package norm splits runs after 30 marks.
func slowDecomposed(text []rune) (x []rune) {
	ccc := func(r rune) int {
		if classOf(r)&normal == 0 {
			return 0
		}
		return int(norm.NFD.PropertiesString(string(r)).CCC())
	}
	for _, r := range text {
		if classOf(r)&normal != 0 || r >= hangul && r < hangulEnd {
			x = append(x, []rune(norm.NFD.String(string(r)))...)
		} else {
			x = append(x, r)
		}
	}
	for i := 0; i < len(x); i++ {
		from := i
		for i < len(x) && ccc(x[i]) > 0 {
			i++
		}
		slices.SortStableFunc(x[from:i], func(a, b rune) int { return cmp.Compare(ccc(a), ccc(b)) })
	}
	return x
}

func slowPieces(m *wordPiece, word string) (ids []int32) {
	if utf8.RuneCountInString(word) > m.most {
		return []int32{m.unk}
	}
	for prefix := ""; word != ""; prefix = "##" {
		n := len(word)
		for ; n > 0; n-- {
			if id, ok := m.id(prefix + word[:n]); ok {
				ids = append(ids, id)
				break
			}
		}
		if n == 0 {
			return []int32{m.unk}
		}
		word = word[n:]
	}
	return ids
}

// hostileTokenizers have a piece for each character that a word of hostile code points can
// have, so that ids show the order of all characters.
func hostileTokenizers(t testing.TB) []*Tokenizer {
	list, err := makeHostile()
	require.NoError(t, err)
	return list
}

var makeHostile = sync.OnceValues(func() (list []*Tokenizer, err error) {
	seen := map[rune]bool{}
	var b strings.Builder
	b.WriteString("[UNK]\n[CLS]\n[SEP]\n[MASK]\n[PAD]\nab\n##ab\n")
	for _, block := range hostile {
		for r := block[0]; r <= block[1]; r++ {
			for _, c := range norm.NFD.String(string(r)) + strings.ToLower(string(r)) {
				if !seen[c] && c > ' ' && c != 0x85 && c != 0xA0 {
					b.WriteString(string(c) + "\n##" + string(c) + "\n")
				}
				seen[c] = true
			}
		}
	}
	for _, lowercase := range []bool{true, false} {
		tok, err := ofVocabulary(b.String(), lowercase)
		if err != nil {
			return nil, err
		}
		list = append(list, tok)
	}
	return list, nil
})

// Texts of hostile characters have the same ids as the step-by-step reference.
func TestRandomTexts(t *testing.T) {
	toks := hostileTokenizers(t)
	n := 100_000
	if testing.Short() {
		n = 5000
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range n {
		text := randomText(r)
		for _, tok := range toks {
			if want, got := slow(tok, text), encode(tok, text, 0); !slices.Equal(want, got) {
				t.Fatalf("%+q, %+v: got %d, want %d", text, tok.normalizers, got, want)
			}
		}
	}
}

// forms are the normalization forms, and package norm's.
var forms = map[norm.Form]form{norm.NFC: {norm.NFD, true}, norm.NFD: {norm.NFD, false}, norm.NFKC: {norm.NFKD, true}, norm.NFKD: {norm.NFKD, false}}

// Short texts of old characters have the forms of package norm, which composes characters beyond 16 bits
// wrongly.
func TestForms(t *testing.T) {
	loadClasses()
	r := rand.New(rand.NewPCG(5, 6))
	var s scratch
	for range 100_000 {
		var text string
		for range 1 + r.IntN(6) {
			block := hostile[r.IntN(len(hostile))]
			c := block[0] + r.Int32N(block[1]-block[0]+1)
			if c < 0x10000 && utf8.ValidRune(c) && (classOf(c)&normal != 0 || norm.NFKD.String(string(c)) == string(c) && norm.NFKD.PropertiesString(string(c)).CCC() == 0) {
				text += string(c)
			}
		}
		for f, ours := range forms {
			require.Equal(t, f.String(text), string(ours.normalize(&s, nil, text)), "%+q, form %d", text, f)
		}
	}
}

// Time is linear in the length of any text.
func TestLongRuns(t *testing.T) {
	toks := hostileTokenizers(t)
	for _, unit := range []string{
		"\u0301", "\u0323\u0301", "\U0001D16D\U0001D165\u302E", "\U0001D16D", "\uAC00", "\u1161", "\uFFC4\u0323\u0301", "\uFF9E", "[", "[MASK", "a", "\x80", "\xED\xA0\x80", "\u200B", "\u0F73",
	} {
		seconds := func(bytes int) float64 {
			text := "e" + strings.Repeat(unit, bytes/len(unit))
			from := time.Now()
			for _, tok := range toks {
				encode(tok, text, 0)
			}
			return time.Since(from).Seconds()
		}
		short := seconds(1 << 13)
		for tries := 3; ; tries-- {
			if long := seconds(1 << 19); long < 64*8*short+1 {
				break
			} else if tries == 1 {
				t.Fatalf("%+q: %.3f seconds, and 64 times the text %.3f", unit, short, long)
			}
			short = max(short, seconds(1<<13)) // on a busy machine
		}
	}
}

func FuzzText(f *testing.F) {
	toks := hostileTokenizers(f)
	r := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		f.Add([]byte(randomText(r)))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, tok := range toks {
			require.Equal(t, slow(tok, string(text)), encode(tok, string(text), 0), "%+q, %+v", text, tok.normalizers)
		}
	})
}

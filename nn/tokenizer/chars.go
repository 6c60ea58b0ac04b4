package tokenizer

import (
	_ "embed"
	"encoding/binary"
	"sync"
	"unicode"
)

// runs are the classes of all characters, as tools/tokenizer_classes.py writes them: the length of a
// run of code points, a varint, and the class, a byte.
//
//go:embed classes.bin
var runs []byte

// Bits of a class. Hugging Face's tokenizers have several Unicode tables, of several ages, so these
// classes differ from the categories of package unicode.
const (
	punctuation = 1 << iota // also all symbols of ASCII
	space                   // White_Space
	control                 // dropped by BERT's cleaning
	nonspacing              // dropped by BERT's stripping of accents
	mark                    // dropped by StripAccents
	wordChar                // \w
	numeric                 // category N
	normal                  // has a decomposition or a combining class
)

// classes has the class of each character: of block[index[r>>8]], byte r & 255. loadClasses sets it
// before there is a Tokenizer.
var classes struct {
	index [(unicode.MaxRune + 1) >> 8]uint16
	block [][256]byte
}

// loadClasses decodes the runs.
var loadClasses = sync.OnceFunc(func() {
	seen := map[[256]byte]uint16{}
	var left uint64
	var class byte
	for i, rest := 0, runs; i < len(classes.index); i++ {
		var block [256]byte
		for j := range block {
			if left == 0 {
				n, size := binary.Uvarint(rest)
				left, class, rest = n, rest[size], rest[size+1:]
			}
			block[j] = class
			left--
		}
		at, ok := seen[block]
		if !ok {
			at = uint16(len(classes.block))
			seen[block] = at
			classes.block = append(classes.block, block)
		}
		classes.index[i] = at
	}
})

// classOf returns the class of a character.
func classOf(r rune) byte { return classes.block[classes.index[r>>8]][byte(r)] }

func isSpace(r rune) bool   { return classOf(r)&space != 0 }
func isWord(r rune) bool    { return classOf(r)&wordChar != 0 }
func isPunct(r rune) bool   { return classOf(r)&punctuation != 0 }
func isNumeric(r rune) bool { return classOf(r)&numeric != 0 }

// lowercase letters that Unicode 15 does not have.
var newLetters = unicode.SpecialCase{
	lower(0x1C89, 0x1C89, 1), lower(0xA7CB, 0xA7CB, 0x264-0xA7CB), lower(0xA7CC, 0xA7CC, 1), lower(0xA7CE, 0xA7CE, 1),
	lower(0xA7D2, 0xA7D2, 1), lower(0xA7D4, 0xA7D4, 1), lower(0xA7DA, 0xA7DA, 1), lower(0xA7DC, 0xA7DC, 0x19B-0xA7DC),
	lower(0x10D50, 0x10D65, 32), lower(0x16EA0, 0x16EB8, 27),
}

// lower returns the range of letters whose lowercase is delta code points away.
func lower(from, to uint32, delta rune) unicode.CaseRange {
	return unicode.CaseRange{Lo: from, Hi: to, Delta: [unicode.MaxCase]rune{unicode.LowerCase: delta}}
}

// newerLetters and newerNumbers are the characters of the categories L and N in Hugging Face's
// patterns that Unicode 15 does not have.
var newerLetters = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x1C89, 0x1C8A, 1}, {0xA7CB, 0xA7CD, 1}, {0xA7DA, 0xA7DC, 1},
	},
	R32: []unicode.Range32{
		{0x105C0, 0x105F3, 1}, {0x10D4A, 0x10D65, 1}, {0x10D6F, 0x10D85, 1}, {0x10EC2, 0x10EC4, 1}, {0x11380, 0x11389, 1},
		{0x1138B, 0x1138B, 1}, {0x1138E, 0x1138E, 1}, {0x11390, 0x113B5, 1}, {0x113B7, 0x113B7, 1}, {0x113D1, 0x113D1, 1},
		{0x113D3, 0x113D3, 1}, {0x11BC0, 0x11BE0, 1}, {0x13460, 0x143FA, 1}, {0x16100, 0x1611D, 1}, {0x16D40, 0x16D6C, 1},
		{0x18CFF, 0x18CFF, 1}, {0x1E5D0, 0x1E5ED, 1}, {0x1E5F0, 0x1E5F0, 1}, {0x2EBF0, 0x2EE5D, 1},
	},
}

var newerNumbers = &unicode.RangeTable{
	R32: []unicode.Range32{
		{0x10D40, 0x10D49, 1}, {0x116D0, 0x116E3, 1}, {0x11BF0, 0x11BF9, 1}, {0x16130, 0x16139, 1}, {0x16D70, 0x16D79, 1},
		{0x1CCF0, 0x1CCF9, 1}, {0x1E5F1, 0x1E5FA, 1},
	},
}

// isIdeograph reports whether r is in one of the blocks of ideographs that BERT names. Unicode has
// more such blocks.
func isIdeograph(r rune) bool {
	return r >= 0x3400 && (r <= 0x4DBF || 0x4E00 <= r && r <= 0x9FFF || 0xF900 <= r && r <= 0xFAFF ||
		0x20000 <= r && r <= 0x2A6DF || 0x2A700 <= r && r <= 0x2B81F || 0x2B920 <= r && r <= 0x2CEAF ||
		0x2F800 <= r && r <= 0x2FA1F)
}

package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Go's assembler lacks most vector instructions of arm64. Which ones it has depends on the version
// of Go. The generator therefore writes all vector instructions as data. The texts of these
// instructions have the syntax of other assemblers. A test compares the words with the output of
// llvm-mc.

// A form describes an instruction's text, without the numbers of registers and constants. word is
// the encoding if all these numbers are 0. fields has one letter for each of these numbers, in the
// order of the text.
type form struct {
	word   uint32
	fields string
}

// fields maps each letter of a form to a function that shifts a number into its place in the
// encoding:
//
//   - d, n, m, t: registers; t is the second register of a pair
//   - i, f: in products, the index of a 32-bit element, of a 16-bit element
//   - e: the index of dup's element
//   - l, r: left and right shifts of 32-bit elements
//   - p, o, w, h: byte offsets of a pair of vectors, a vector, a word, a doubleword
//   - u: a post-index offset
//   - b: the byte count of ext
var fields = map[rune]func(x uint32) uint32{
	'd': func(x uint32) uint32 { return x },
	'n': func(x uint32) uint32 { return x << 5 },
	'm': func(x uint32) uint32 { return x << 16 },
	't': func(x uint32) uint32 { return x << 10 },
	'i': func(x uint32) uint32 { return x&1<<21 | x>>1<<11 },
	'e': func(x uint32) uint32 { return x << 19 },
	'f': func(x uint32) uint32 { return x&1<<20 | x>>1&1<<21 | x>>2<<11 },
	'l': func(x uint32) uint32 { return x << 16 },
	'r': func(x uint32) uint32 { return (32 - x) << 16 },
	'p': func(x uint32) uint32 { return x / 16 & 127 << 15 },
	'o': func(x uint32) uint32 { return x / 16 << 10 },
	'h': func(x uint32) uint32 { return x / 8 << 10 },
	'w': func(x uint32) uint32 { return x / 4 << 10 },
	'u': func(x uint32) uint32 { return x & 511 << 12 },
	'b': func(x uint32) uint32 { return x << 11 },
	'_': func(uint32) uint32 { return 0 }, // a constant of the form
}

var forms = map[string]form{
	"fmla v.4s, v.4s, v.s[]":    {0x4f801000, "dnmi"},
	"fmla v.4s, v.4s, v.4s":     {0x4e20cc00, "dnm"},
	"fmlal v.4s, v.4h, v.h[]":   {0x4f800000, "dnmf"},
	"fmlal2 v.4s, v.4h, v.h[]":  {0x6f808000, "dnmf"},
	"fmlal v.4s, v.4h, v.4h":    {0x4e20ec00, "dnm"},
	"fmlal2 v.4s, v.4h, v.4h":   {0x6e20cc00, "dnm"},
	"bfmlalb v.4s, v.8h, v.h[]": {0x0fc0f000, "dnmf"},
	"bfmlalt v.4s, v.8h, v.h[]": {0x4fc0f000, "dnmf"},
	"bfmlalb v.4s, v.8h, v.8h":  {0x2ec0fc00, "dnm"},
	"bfmlalt v.4s, v.8h, v.8h":  {0x6ec0fc00, "dnm"},
	"bfmmla v.4s, v.8h, v.8h":   {0x6e40ec00, "dnm"},
	"bfcvtn v.4h, v.4s":         {0x0ea16800, "dn"},
	"bfcvtn2 v.8h, v.4s":        {0x4ea16800, "dn"},
	"sdot v.4s, v.16b, v.4b[]":  {0x4f80e000, "dnmi"},
	"smmla v.4s, v.16b, v.16b":  {0x4e80a400, "dnm"},
	"smull v.8h, v.8b, v.8b":    {0x0e20c000, "dnm"},
	"smull2 v.8h, v.16b, v.16b": {0x4e20c000, "dnm"},
	"smlal v.8h, v.8b, v.8b":    {0x0e208000, "dnm"},
	"smlal2 v.8h, v.16b, v.16b": {0x4e208000, "dnm"},
	"sadalp v.4s, v.8h":         {0x4e606800, "dn"},
	"fmls v.4s, v.4s, v.4s":     {0x4ea0cc00, "dnm"},
	"fmul v.4s, v.4s, v.4s":     {0x6e20dc00, "dnm"},
	"fadd v.4s, v.4s, v.4s":     {0x4e20d400, "dnm"},
	"fsub v.4s, v.4s, v.4s":     {0x4ea0d400, "dnm"},
	"fdiv v.4s, v.4s, v.4s":     {0x6e20fc00, "dnm"},
	"fmax v.4s, v.4s, v.4s":     {0x4e20f400, "dnm"},
	"fmin v.4s, v.4s, v.4s":     {0x4ea0f400, "dnm"},
	"fmaxnm v.4s, v.4s, v.4s":   {0x4e20c400, "dnm"},
	"faddp v.4s, v.4s, v.4s":    {0x6e20d400, "dnm"},
	"fcmeq v.4s, v.4s, v.4s":    {0x4e20e400, "dnm"},
	"fcmle v.4s, v.4s, #.0":     {0x6ea0d800, "dn_"},
	"fabs v.4s, v.4s":           {0x4ea0f800, "dn"},
	"fneg v.4s, v.4s":           {0x6ea0f800, "dn"},
	"fmaxnmv s, v.4s":           {0x6e30c800, "dn"},

	"and v.16b, v.16b, v.16b": {0x4e201c00, "dnm"},
	"bic v.16b, v.16b, v.16b": {0x4e601c00, "dnm"},
	"orr v.16b, v.16b, v.16b": {0x4ea01c00, "dnm"},
	"eor v.16b, v.16b, v.16b": {0x6e201c00, "dnm"},
	"bsl v.16b, v.16b, v.16b": {0x6e601c00, "dnm"},
	"bif v.16b, v.16b, v.16b": {0x6ee01c00, "dnm"},
	"bit v.16b, v.16b, v.16b": {0x6ea01c00, "dnm"},
	"movi v.4s, #, lsl #":     {0x4f0264e0, "d__"}, // only 71 and 24
	"mvni v.4s, #, msl #":     {0x6f07c7e0, "d__"}, // only 255 and 8
	"movi v.2d, #":            {0x6f00e400, "d_"},
	"mov v.16b, v.16b":        {0x4ea01c00, "d="},
	"dup v.4s, w":             {0x4e040c00, "dn"},
	"dup v.4s, v.s[]":         {0x4e040400, "dne"},
	"umov w, v.s[]":           {0x0e043c00, "dne"},

	"shl v.4s, v.4s, #":          {0x4f205400, "dnl"},
	"sshr v.4s, v.4s, #":         {0x4f200400, "dnr"},
	"ushr v.4s, v.4s, #":         {0x6f200400, "dnr"},
	"add v.4s, v.4s, v.4s":       {0x4ea08400, "dnm"},
	"sub v.4s, v.4s, v.4s":       {0x6ea08400, "dnm"},
	"addp v.4s, v.4s, v.4s":      {0x4ea0bc00, "dnm"},
	"umull v.2d, v.2s, v.2s":     {0x2ea0c000, "dnm"},
	"umull2 v.2d, v.4s, v.4s":    {0x6ea0c000, "dnm"},
	"umax v.4s, v.4s, v.4s":      {0x6ea06400, "dnm"},
	"umaxv s, v.4s":              {0x6eb0a800, "dn"},
	"cmtst v.4s, v.4s, v.4s":     {0x4ea08c00, "dnm"},
	"cmtst v.16b, v.16b, v.16b":  {0x4e208c00, "dnm"},
	"cmeq v.4s, v.4s, #":         {0x4ea09800, "dn_"},
	"cmhs v.4s, v.4s, v.4s":      {0x6ea03c00, "dnm"},
	"addv h, v.8h":               {0x4e71b800, "dn"},
	"uminv s, v.4s":              {0x6eb1a800, "dn"},
	"scvtf v.4s, v.4s":           {0x4e21d800, "dn"},
	"fcvtns v.4s, v.4s":          {0x4e21a800, "dn"},
	"fcvtl v.4s, v.4h":           {0x0e217800, "dn"},
	"fcvtl2 v.4s, v.8h":          {0x4e217800, "dn"},
	"fcvtn v.4h, v.4s":           {0x0e216800, "dn"},
	"fcvtn2 v.8h, v.4s":          {0x4e216800, "dn"},
	"shll v.4s, v.4h, #":         {0x2e613800, "dn_"},
	"shll2 v.4s, v.8h, #":        {0x6e613800, "dn_"},
	"shrn v.4h, v.4s, #":         {0x0f108400, "dn_"},
	"shrn2 v.8h, v.4s, #":        {0x4f108400, "dn_"},
	"uzp1 v.16b, v.16b, v.16b":   {0x4e001800, "dnm"},
	"uzp1 v.8h, v.8h, v.8h":      {0x4e401800, "dnm"},
	"uzp1 v.4s, v.4s, v.4s":      {0x4e801800, "dnm"},
	"uzp2 v.4s, v.4s, v.4s":      {0x4e805800, "dnm"},
	"trn1 v.4s, v.4s, v.4s":      {0x4e802800, "dnm"},
	"trn2 v.4s, v.4s, v.4s":      {0x4e806800, "dnm"},
	"trn1 v.2d, v.2d, v.2d":      {0x4ec02800, "dnm"},
	"trn2 v.2d, v.2d, v.2d":      {0x4ec06800, "dnm"},
	"zip1 v.16b, v.16b, v.16b":   {0x4e003800, "dnm"},
	"zip1 v.8h, v.8h, v.8h":      {0x4e403800, "dnm"},
	"zip2 v.8h, v.8h, v.8h":      {0x4e407800, "dnm"},
	"zip1 v.4s, v.4s, v.4s":      {0x4e803800, "dnm"},
	"zip2 v.4s, v.4s, v.4s":      {0x4e807800, "dnm"},
	"ext v.16b, v.16b, v.16b, #": {0x6e000000, "dnmb"},

	"ldr q, [x]":             {0x3dc00000, "dn"},
	"ldr q, [x, #]":          {0x3dc00000, "dno"},
	"ldr q, [x, x]":          {0x3ce06800, "dnm"},
	"ldr q, [x], #":          {0x3cc00400, "dnu"},
	"ldr d, [x, #]":          {0xfd400000, "dnh"},
	"ldr s, [x]":             {0xbd400000, "dn"},
	"ldr d, [x, x]":          {0xfc606800, "dnm"},
	"ldr s, [x, #]":          {0xbd400000, "dnw"},
	"ldr s, [x, x]":          {0xbc606800, "dnm"},
	"ldr s, [x], #":          {0xbc400400, "dnu"},
	"ldr h, [x], #":          {0x7c400400, "dnu"},
	"str q, [x]":             {0x3d800000, "dn"},
	"str q, [x, #]":          {0x3d800000, "dno"},
	"str q, [x, x]":          {0x3ca06800, "dnm"},
	"str s, [x, x]":          {0xbc206800, "dnm"},
	"str q, [x], #":          {0x3c800400, "dnu"},
	"str s, [x, #]":          {0xbd000000, "dnw"},
	"str s, [x], #":          {0xbc000400, "dnu"},
	"ldp q, q, [x, #]":       {0xad400000, "dtnp"},
	"ldp q, q, [x], #":       {0xacc00000, "dtnp"},
	"stp q, q, [x, #]":       {0xad000000, "dtnp"},
	"stp q, q, [x], #":       {0xac800000, "dtnp"},
	"ld1 {v.4s}, [x], x":     {0x4cc07800, "dnm"},
	"ld1 {v.2s}, [x], x":     {0x0cc07800, "dnm"},
	"ld1r {v.4s}, [x]":       {0x4d40c800, "dn"},
	"ld1r {v.4s}, [x], x":    {0x4dc0c800, "dnm"},
	"prfm pldl1keep, [x]":    {0xf9800000, "n"},
	"prfm pldl2keep, [x]":    {0xf9800002, "n"},
	"prfm pldl2keep, [x, x]": {0xf8a06802, "nm"},
}

var number = regexp.MustCompile(`(\b[vqdshxw]|#|\[)(\d+)`)

// encode returns the word of an instruction's text.
func encode(text string) (uint32, error) {
	var numbers []uint32
	key := number.ReplaceAllStringFunc(text, func(s string) string {
		n, _ := strconv.Atoi(s[1:])
		numbers = append(numbers, uint32(n))
		return s[:1]
	})
	f, ok := forms[key]
	if !ok {
		return 0, fmt.Errorf("%s: no form %q", text, key)
	}
	if f.fields == "d=" { // a move is an orr of one register with itself
		return f.word | numbers[0] | numbers[1]<<5 | numbers[1]<<16, nil
	}
	if len(numbers) != len(f.fields) {
		return 0, fmt.Errorf("%s: %d numbers for %q", text, len(numbers), f.fields)
	}
	for i, field := range f.fields {
		if field != '_' && strings.ContainsRune("dnmt", field) && numbers[i] > 31 {
			return 0, fmt.Errorf("%s: no register %d", text, numbers[i])
		}
		f.word |= fields[field](numbers[i])
	}
	return f.word, nil
}

package main

import (
	"fmt"
	"log"
	"strings"
)

const (
	lanes    = 16 // queries of a tile (in backward passes, keys or columns): four vectors
	vectors  = lanes / 4
	rowBytes = 4 * lanes // bytes of a row of S, Qᵀ and Oᵀ
	line     = 64        // bytes of a cache line
)

// A reg is the number of a general register.
type reg int

func (r reg) String() string { return fmt.Sprintf("R%d", int(r)) }

// free lists the general registers that a routine may use. The operating system reserves R18, the
// assembler R27, and Go R28 to R30.
var free = func() (list []reg) {
	for i := range reg(26) {
		if i != 18 {
			list = append(list, i)
		}
	}
	return append(list, 26)
}()

// A generator writes assembly and the declarations of its routines.
type generator struct {
	tier              string // appended to the names of routines
	code, data, stubs strings.Builder
	tables            map[string]bool

	// The fields below belong to the current routine.
	offsets map[string]int    // of arguments
	types   map[string]string // of arguments
	used    int               // number of registers in use
}

// routine begins a routine whose pointers do not escape. A signature of a routine that returns a
// uint32 ends with ") uint32".
func (g *generator) routine(name, signature string, does ...string) {
	name += g.tier
	g.offsets, g.types, g.used = map[string]int{}, map[string]string{}, 0
	arguments, result, returns := strings.Cut(signature, ") ")
	size := g.layOut(arguments)
	if returns {
		size = (size + 7) / 8 * 8
		g.offsets["ret"], g.types["ret"] = size, result
		size += 4
	} else {
		signature += ")"
	}
	fmt.Fprintf(&g.stubs, "\n// %s %s\n//\n//go:noescape\nfunc %s(%s\n", name, strings.Join(does, "\n// "), name, signature)
	fmt.Fprintf(&g.code, "\n// func %s(%s\nTEXT ·%s(SB), NOSPLIT, $0-%d\n", name, signature, name, size)
}

// layOut sets the offsets and types of a signature's arguments. It returns the total size of the
// arguments in bytes.
func (g *generator) layOut(signature string) (size int) {
	list := strings.Split(signature, ", ")
	kind := ""
	for i := len(list) - 1; i >= 0; i-- { // a type belongs to the names before it, too
		name, after, ok := strings.Cut(list[i], " ")
		if ok {
			kind = after
		}
		list[i] = name
		g.types[name] = kind
	}
	for _, name := range list {
		n := 8
		if t := g.types[name]; t == "float32" || t == "uint32" {
			n = 4
		}
		size = (size + n - 1) / n * n
		g.offsets[name] = size
		size += n
	}
	return size
}

func (g *generator) done() { g.op("RET") }

func (g *generator) op(format string, args ...any) {
	fmt.Fprintf(&g.code, "\t"+format+"\n", args...)
}

func (g *generator) label(name string) { fmt.Fprintf(&g.code, "%s:\n", name) }

func (g *generator) v(format string, args ...any) {
	for i, x := range args {
		if r, ok := x.(reg); ok {
			args[i] = int(r)
		}
	}
	text := fmt.Sprintf(format, args...)
	word, err := encode(text)
	if err != nil {
		log.Panic(err)
	}
	fmt.Fprintf(&g.code, "\tWORD $0x%08x // %s\n", word, text)
}

// temp returns an unused register.
func (g *generator) temp() reg {
	if g.used == len(free) {
		log.Panic("no register is left")
	}
	g.used++
	return free[g.used-1]
}

func (g *generator) temps(n int) (list []reg) {
	for range n {
		list = append(list, g.temp())
	}
	return list
}

// at returns the assembler operand of an argument.
func (g *generator) at(name string) string {
	offset, ok := g.offsets[name]
	if !ok {
		log.Panicf("no argument %s", name)
	}
	return fmt.Sprintf("%s+%d(FP)", name, offset)
}

func (g *generator) load(name string, r reg) {
	if t := g.types[name]; t == "float32" || t == "uint32" {
		g.op("MOVWU %s, %v", g.at(name), r)
	} else {
		g.op("MOVD %s, %v", g.at(name), r)
	}
}

// param loads an argument into an unused register. params loads several arguments.
func (g *generator) param(name string) reg {
	r := g.temp()
	g.load(name, r)
	return r
}

func (g *generator) params(names ...string) (list []reg) {
	for _, name := range names {
		list = append(list, g.param(name))
	}
	return list
}

// stepParam loads an argument that is a number of float32 elements, and converts it to bytes.
func (g *generator) stepParam(name string) reg {
	r := g.param(name)
	g.op("LSL $2, %v", r)
	return r
}

// broadcast loads an argument of 4 bytes into all lanes of a vector.
func (g *generator) broadcast(name string, v int) {
	r := g.param(name)
	g.v("dup v%d.4s, w%d", v, r)
	g.used--
}

// word sets all lanes of a vector to x.
func (g *generator) word(x uint32, v int) {
	r := g.temp()
	g.op("MOVW $0x%08x, %v", x, r)
	g.v("dup v%d.4s, w%d", v, r)
	g.used--
}

func (g *generator) clear(list ...int) {
	for _, v := range list {
		g.v("movi v%d.2d, #0", v)
	}
}

// table returns a register with the address of constants in memory.
func (g *generator) table(name string, words ...uint32) reg {
	if !g.tables[name] {
		g.tables[name] = true
		g.data.WriteByte('\n')
		for i, w := range words {
			fmt.Fprintf(&g.data, "DATA %s<>+%d(SB)/4, $0x%08x\n", name, 4*i, w)
		}
		fmt.Fprintf(&g.data, "GLOBL %s<>(SB), RODATA|NOPTR, $%d\n", name, 4*len(words))
	}
	r := g.temp()
	g.op("MOVD $%s<>(SB), %v", name, r)
	return r
}

// loadRow and storeRow load and store four adjacent vectors.
func (g *generator) loadRow(from reg, offset int, v int) {
	g.v("ldp q%d, q%d, [x%d, #%d]", v, v+1, from, offset)
	g.v("ldp q%d, q%d, [x%d, #%d]", v+2, v+3, from, offset+32)
}

func (g *generator) storeRow(v int, to reg, offset int) {
	g.v("stp q%d, q%d, [x%d, #%d]", v, v+1, to, offset)
	g.v("stp q%d, q%d, [x%d, #%d]", v+2, v+3, to, offset+32)
}

// each calls f for every vector of a row, so that the vectors' latencies overlap.
func each(f func(i int)) {
	for i := range vectors {
		f(i)
	}
}

// count writes the end of a loop of n steps.
func (g *generator) count(n reg, label string) {
	g.op("SUBS $1, %v", n)
	g.op("BNE %s", label)
}

// inGroups writes loops over n rows: groups of sizes[0] rows each, then smaller groups for the rows
// left over. body writes the code of one group and must not change n. The last 8 rows become 4 + 4,
// not 6 + 2: a group of 2 has too few sums to hide the latency of the multiply-add.
func (g *generator) inGroups(name string, n reg, sizes []int, body func(rows int, label string)) {
	for i, rows := range sizes {
		label := fmt.Sprintf("%s%d", name, rows)
		g.label(label)
		g.op("CMP $%d, %v", rows, n)
		g.op("BLT %sdone", label)
		if i == 0 && rows == 6 {
			g.op("CMP $8, %v", n)
			g.op("BEQ %sdone", label)
		}
		body(rows, label)
		g.op("SUB $%d, %v", rows, n)
		g.op("B %s", label)
		g.label(label + "done")
	}
}

// unrolled writes a loop of n steps: unroll steps per iteration, then one step per iteration. step
// writes the code of the given number of steps. The loops destroy n.
func (g *generator) unrolled(label string, n reg, unroll int, step func(steps int)) {
	g.op("SUBS $%d, %v", unroll, n)
	g.op("BLT %srest", label)
	g.label(label)
	step(unroll)
	g.op("SUBS $%d, %v", unroll, n)
	g.op("BGE %s", label)
	g.label(label + "rest")
	g.op("ADDS $%d, %v", unroll, n)
	g.op("BEQ %send", label)
	g.label(label + "one")
	step(1)
	g.count(n, label+"one")
	g.label(label + "end")
}

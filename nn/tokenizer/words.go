package tokenizer

// words are the words of a segment of text.
type words struct {
	text  []byte
	list  []word   // not empty, in order
	first bool     // the input begins with the first word
	next  struct { // result of the current preTokenizer
		text []byte
		list []word
	}
	pieces []piece
}

// A word is text[from:to].
type word struct{ from, to int }

// add appends a word to the result of a preTokenizer. Empty words are dropped.
func (w *words) add(from, to int) {
	if from < to {
		w.next.list = append(w.next.list, word{from, to})
	}
}

// done ends a preTokenizer that kept the text.
func (w *words) done() {
	w.list, w.next.list = w.next.list, w.list[:0]
}

// rewritten ends a preTokenizer that wrote its words to next.text.
func (w *words) rewritten() {
	w.text, w.next.text = w.next.text, w.text[:0]
	w.done()
}

// A behavior is the treatment of the delimiters between words.
type behavior string

// Behaviors by their names in tokenizer.json.
const (
	removed            behavior = "Removed"
	isolated           behavior = "Isolated"
	mergedWithPrevious behavior = "MergedWithPrevious"
	mergedWithNext     behavior = "MergedWithNext"
	contiguous         behavior = "Contiguous"
)

// A pattern finds the first delimiter in text[from:]. It returns -1 if there is none. A delimiter
// is not empty.
type pattern interface {
	find(text string, from int) (start, end int)
}

// A piece is a part of a word: a delimiter, or text between delimiters.
type piece struct {
	word
	delimiter bool
}

// divide splits all words at the delimiters of a pattern. If invert is true, the text between the
// delimiters counts as delimiters, and conversely.
func (w *words) divide(p pattern, b behavior, invert bool) {
	text := view(w.text)
	for _, x := range w.list {
		w.pieces = w.pieces[:0]
		for at := x.from; at < x.to; {
			start, end := p.find(text[:x.to], at)
			if start < 0 {
				start, end = x.to, x.to
			}
			if start > at {
				w.pieces = append(w.pieces, piece{word{at, start}, invert})
			}
			if end > start {
				w.pieces = append(w.pieces, piece{word{start, end}, !invert})
			}
			at = max(end, at+1)
		}
		w.merge(b)
	}
	w.done()
}

// merge appends the pieces of a word to the result, for a behavior.
func (w *words) merge(b behavior) {
	for i := 0; i < len(w.pieces); i++ {
		x := w.pieces[i]
		switch {
		case b == removed && x.delimiter:
			continue
		case b == contiguous:
			for ; i+1 < len(w.pieces) && w.pieces[i+1].delimiter == x.delimiter; i++ {
				x.to = w.pieces[i+1].to
			}
		case b == mergedWithPrevious:
			if !x.delimiter && i+1 < len(w.pieces) && w.pieces[i+1].delimiter {
				i++
				x.to = w.pieces[i].to
			}
		case b == mergedWithNext:
			if x.delimiter && i+1 < len(w.pieces) && !w.pieces[i+1].delimiter {
				i++
				x.to = w.pieces[i].to
			}
		}
		w.add(x.from, x.to)
	}
}

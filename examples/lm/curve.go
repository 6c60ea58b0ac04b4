package main

import (
	"bytes"
	"fmt"

	"github.com/flashkit-go/flashkit/internal/outfile"
)

// draw writes the losses to the files of --losses and --curve.
func (t *trainer) draw() error {
	if t.losses != "" {
		b := bytes.NewBufferString(lossesBegin)
		for _, x := range t.history {
			fmt.Fprintf(b, "%.7g\n", x)
		}
		if err := outfile.Write(t.losses, lossesKind, b.Bytes()); err != nil {
			return err
		}
	}
	if t.curve == "" || len(t.history) == 0 {
		return nil
	}
	return outfile.Write(t.curve, curveKind, curve(t.history, t.text.entropy()))
}

// curve returns a plot of the losses as an SVG image. A horizontal line marks unigrams, the loss of
// a model that uses only the frequency of each byte.
func curve(losses []float32, unigrams float64) []byte {
	const (
		left, top, wide, high = 50., 20., 560., 300.
		bottom, right         = top + high, left + wide
	)
	most := unigrams
	for _, x := range losses {
		most = max(most, float64(x))
	}
	at := func(step int, loss float64) (x, y float64) {
		return left + wide*float64(step)/float64(max(1, len(losses)-1)), bottom - high*min(loss/most, 1)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="system-ui,sans-serif" font-size="12" role="img" aria-label="`+curveTitle+`">
<rect width="100%%" height="100%%" fill="#fff"/>
`, right+70, bottom+40)
	for n := 0.; n <= most; n++ {
		_, y := at(0, n)
		fmt.Fprintf(&b, "<path d=\"M%g %.1fH%g\" stroke=\"#e3e5e8\"/><text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", left, y, right, left-8, y+4, n)
	}
	_, y := at(0, unigrams)
	fmt.Fprintf(&b, "<path d=\"M%g %.1fH%g\" stroke=\"#b85a00\" stroke-dasharray=\"5 3\"/><text x=\"%g\" y=\"%.1f\" fill=\"#b85a00\">unigrams</text>\n", left, y, right, right+6, y+4)
	b.WriteString(`<path fill="none" stroke="#0c70eb" stroke-width="1.5" d="`)
	for step, loss := range losses {
		x, y := at(step, float64(loss))
		fmt.Fprintf(&b, "%c%.1f %.1f", "ML"[min(step, 1)], x, y)
	}
	_, y = at(0, float64(losses[len(losses)-1]))
	fmt.Fprintf(&b, "\"/>\n<text x=\"%g\" y=\"%.1f\" fill=\"#0c70eb\">%.3f</text>\n", right+6, y+4, losses[len(losses)-1])
	fmt.Fprintf(&b, "<text x=\"%g\" y=\"%g\">1</text><text x=\"%g\" y=\"%g\" text-anchor=\"end\">step %d</text><text x=\"8\" y=\"14\">loss</text>\n</svg>\n", left, bottom+20, right, bottom+20, len(losses))
	return b.Bytes()
}

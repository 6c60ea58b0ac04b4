package cuda

import "github.com/flashkit-go/flashkit"

// narrowedDim is the padded head dim whose last columns instances of bwd_sm90 leave out where heads have no more than
// those of one of them.
const narrowedDim = 128

// narrowPart returns the instance for a call that needs none but the main one.
func (s *stem) narrowPart(p *flashkit.Problem) partID {
	switch columns := max(p.Dim, p.VDim); {
	case s.dims[s.pad(*p)].dim != narrowedDim || columns > 96:
		return partMain
	case columns > 80:
		return part96
	}
	return part80
}

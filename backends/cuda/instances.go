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

// featurePart returns the instance that knows all features of a problem, and little else.
func (s *stem) featurePart(p *flashkit.Problem) partID {
	switch asked := p.Features() &^ plainFeatures; {
	case !s.hopper:
	case asked&^layoutFeatures == 0:
		return partLayout
	case s.pass == flashkit.PassForward && asked&^(layoutFeatures|flashkit.FeatureSoftcap|flashkit.FeatureALiBi) == 0:
		return shapedPart(p)
	default:
		return singlePart(asked &^ (layoutFeatures | flashkit.FeatureOrigin))
	}
	return partFeatures
}

// singlePart returns the instance of a Hopper stem for one feature that changes weights.
func singlePart(asked flashkit.Feature) partID {
	switch asked {
	case flashkit.FeatureSoftcap:
		return partSoftcap
	case flashkit.FeatureALiBi:
		return partALiBi
	case flashkit.FeatureBias:
		return partBias
	case flashkit.FeatureMask:
		return partMask
	case flashkit.FeatureDropout:
		return partDropout
	}
	return partFeatures
}

// part returns the instance of a stem for what a call asks. Those for one feature want
// something to drop, and those of fwd_sm90 tiles of biases and masks that begin at 16 aligned bytes. Masks
// that are the same for all rows have instances of their own, which list the tiles of keys that take part.
func (x *arguments) part(s *stem, p *flashkit.Problem) partID {
	part, forward := s.featurePart(p), s.pass == flashkit.PassForward
	switch {
	case part == partMask && x.mask.row == 0 && (forward || x.mask.head == 0 || p.Heads == p.KVHeads) && p.KVLen <= listedKeys:
		return partKeys
	case part == partDropout && x.dropBelow == 0:
	case forward && part == partBias && (x.biasWide != 0 || !x.bias.chunks(2)):
	case forward && part == partMask && !x.mask.chunks(1):
	default:
		return part
	}
	return partFeatures
}

// listedKeys is up to how many keys they can.
const listedKeys = 1 << 17

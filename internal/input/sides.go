package input

// A side says what the third dimension of an argument counts.
type side uint8

// SideOf returns what the third dimension of the argument of that name counts.
func SideOf(argument string) side {
	switch argument {
	case "K", "V", "DK", "DV":
		return Keys
	case "Bias", "DBias", "Mask":
		return pairs
	case "Slopes", "Sink", "DSink":
		return Neither
	}
	return Queries
}

// Of returns the layout of an argument: that of the tensors that have a choice.
func (l Layout) Of(argument string) Layout {
	if s := SideOf(argument); s == Queries || s == Keys {
		return l
	}
	return BHSD
}

package input

// A side is the meaning of an argument's third dimension.
type side uint8

// SideOf returns the side of the named argument.
func SideOf(argument string) side {
	switch argument {
	case "K", "V", "KScale", "VScale", "DK", "DV":
		return Keys
	case "Bias", "DBias", "Mask", "Ranges", "KeyMass":
		return pairs
	case "Slopes", "Sink", "DSink":
		return Neither
	}
	return Queries
}

// Of returns the layout of an argument: l for queries and keys, else BHSD.
func (l Layout) Of(argument string) Layout {
	if s := SideOf(argument); s == Queries || s == Keys {
		return l
	}
	return BHSD
}

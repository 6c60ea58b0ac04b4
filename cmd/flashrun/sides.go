package main

// A side says what the third dimension of an argument counts.
type side uint8

func sideOf(argument string) side {
	switch argument {
	case "K", "V", "DK", "DV":
		return keys
	case "Bias", "DBias", "Mask":
		return pairs
	case "Slopes", "Sink", "DSink":
		return none
	}
	return queries
}

// of returns the layout of an argument: that of the tensors that have a choice.
func (l layout) of(argument string) layout {
	if s := sideOf(argument); s == queries || s == keys {
		return l
	}
	return bhsd
}

package simd

// A portablePlan is the part of the portable kernels.
type portablePlan struct {
	n, m       int // rows and keys of the longest sequence
	rows, keys int // of the largest tile

	// Items of a backward pass: tiles of query rows, of keys, of a DBias that repeats, and heads of DSink.
	queryItems, keyItems, biasItems, sinkItems int

	ownBias bool // an item of query rows writes their rows of DBias, padding included
}

// planPortable plans the tiles of query rows. Without arguments, sequences are as long as they may be.
func (pl *plan) planPortable() {
	x := &pl.portable
	for b := range pl.sequences() {
		s := pl.call.Seq(b)
		x.n, x.m = max(x.n, s.N), max(x.m, s.M)
	}
	x.rows, x.keys = min(tileQ, x.n), min(tileK, x.m)
	pl.rows, x.queryItems = tileQ, pl.p.Heads*pl.rowTiles(tileQ)
}

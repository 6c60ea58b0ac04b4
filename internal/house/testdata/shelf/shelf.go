package shelf

// A Part has fields.
type Part struct {
	A int // commented
	B int
	c int
}

// A Doer has a method.
type Doer interface {
	Do()
}

// Members of a group share its comment.
var (
	First  = 1
	Second = 2
)

var Loose = 3

// New returns a Part.
func New() Part { return Part{c: First} }

// Shown returns a number.
func (p Part) Shown() int { return p.c }

func (p Part) Hidden() int { return p.c }

// Right returns a number.
func (p Part) Wrong() int { return p.c }

func (p Part) hidden() int { return p.c }

// Package house tests the repository itself: imports, sizes, links, workflows and bits.
package house

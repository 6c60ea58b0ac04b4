//go:build !race && !purego

package nn_test

const allocates = false

//go:build !purego

package simd

var testedISAs = []testedISA{{"neon", &neonLanes, neon}}

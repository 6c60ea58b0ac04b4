//go:build !noasm && !purego

package simd

var testedISAs = []testedISA{{"neon", &neonLanes, neon}}

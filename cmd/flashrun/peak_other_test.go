//go:build !linux

package main

import "os"

func peakMemory(*os.ProcessState) (bound, own int64) { return 0, 0 }

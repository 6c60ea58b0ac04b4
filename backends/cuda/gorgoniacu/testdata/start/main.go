// The program start imports cu and prints the driver's version.
package main

import "gorgonia.org/cu"

func main() { println("started; the driver's version is", cu.Version()) }

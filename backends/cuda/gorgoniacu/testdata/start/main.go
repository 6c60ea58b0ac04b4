// The program start does nothing with cu but to import it.
package main

import "gorgonia.org/cu"

func main() { println("started; the driver's version is", cu.Version()) }

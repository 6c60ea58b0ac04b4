package main

import "os"

func Example() {
	os.Args = []string{"minilm", "../../nn/encoder/testdata/tiny", "She sings.", "A man eats pasta.", "A woman plays the guitar."}
	main()
	// Output:
	// 0.9376  A man eats pasta.
	// 0.9120  A woman plays the guitar.
}

package main

func Example() {
	main()
	// Output:
	// the second word: [20 -20]
	// the mean of two: [35 -35]
}

package shelf_test

import "fmt"

func ExampleNew() {
	fmt.Println("made")
	// Output: made
}

func ExamplePart_Shown() {}

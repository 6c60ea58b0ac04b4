package cuda

import "os"

// FLASHKIT_IMAGES is a folder with images/, whose files tests take in place of the embedded ones.
func init() {
	if dir := os.Getenv("FLASHKIT_IMAGES"); dir != "" {
		imageFiles = os.DirFS(dir)
	}
}

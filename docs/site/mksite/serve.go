package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// serve serves the folder on a loopback address until ctx ends.
func serve(ctx context.Context, addr, folder string, w io.Writer) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("-serve %q: %w", addr, err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("-serve %q: %q is not a loopback address", addr, host)
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler(folder), ReadTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	stopped := context.AfterFunc(ctx, func() { server.Close() })
	defer stopped()
	fmt.Fprintf(w, "mksite: http://%s/\n", listener.Addr())
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}

// types maps file extensions to content types. The operating system's table may lack these
// extensions or have other types.
var types = map[string]string{".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm", ".css": "text/css"}

// handler serves the folder. It sends the headers that browsers require before a page may use
// shared memory.
func handler(folder string) http.Handler {
	files := http.FileServer(http.Dir(folder))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Embedder-Policy", "require-corp")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-cache")
		if dot := strings.LastIndexByte(r.URL.Path, '.'); dot >= 0 && types[r.URL.Path[dot:]] != "" {
			h.Set("Content-Type", types[r.URL.Path[dot:]]+"; charset=utf-8")
			if strings.HasSuffix(r.URL.Path, ".wasm") {
				h.Set("Content-Type", "application/wasm")
			}
		}
		files.ServeHTTP(w, r)
	})
}

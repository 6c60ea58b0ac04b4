package main

// #include "abi.h"
import "C"

import (
	"context"
	"errors"
	"math"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

// setPrefix converts a C prefix.
func (f *frame) setPrefix(p *C.fk_prefix) error {
	if err := f.view(&p.k, &f.prefix.K, "prefix.k"); err != nil {
		return err
	}
	if err := f.view(&p.v, &f.prefix.V, "prefix.v"); err != nil {
		return err
	}
	if p.page_count < 0 || p.page_count > math.MaxInt32 {
		return wrong(C.FK_ERR_VALUE, "prefix.page_count", p.page_count, "must be from 0 to %d", math.MaxInt32)
	}
	at := word(&p.pages)
	switch reason := addressFault(at, 4); {
	case at == 0 && p.page_count > 0:
		return stale("prefix.pages", 0)
	case at != 0 && reason != "":
		return wrong(C.FK_ERR_STRIDE, "prefix.pages", hex(at), "%s", reason)
	case at != 0:
		f.prefix.Pages = unsafe.Slice((*int32)(unsafe.Pointer(p.pages)), int(p.page_count))
	}
	f.prefix.Len = int(p.len)
	return nil
}

// forwardPrefix runs a call with a prefix, on the host or in a stream of a GPU.
func (s *session) forwardPrefix(ctx context.Context, f *frame, stream uintptr) error {
	var err error
	if f.device == nil {
		err = s.ForwardPrefix(ctx, f.problem, &f.prefix, &f.args)
	} else {
		err = dispatch.RunPrefix(f.problem, &f.prefix, &f.args, func(p flashkit.Problem, args *flashkit.Args) error {
			o := s.options(flashkit.PassForward)
			o.Paired, o.Unpaired = false, true
			if f.listed && args.Seqs == &f.seqs {
				o.Sequences = &f.lists
			}
			return f.device.launch(ctx, p, flashkit.PassForward, args, o, stream)
		})
	}
	var refused *flashkit.UnsupportedError
	if errors.As(err, &refused) && refused.Kernel == "ForwardPrefix" {
		return &failure{C.FK_ERR_UNSUPPORTED, "prefix", "flashkit: prefix: " + inWords(refused.Reason)}
	}
	return err
}

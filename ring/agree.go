package ring

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/flashkit-go/flashkit"
)

// check returns an error if the rank's tensors do not match the rank's shard of the cut.
func (j *job) check() error {
	p, args := j.p, j.a
	p.Score.Bias, p.Score.Mask = false, false
	p.QLen, p.KVLen = j.cut.QLen(j.rank), j.cut.KVLen(j.rank)
	args.Bias, args.DBias, args.Mask = flashkit.Tensor{}, flashkit.Tensor{}, flashkit.Tensor{}
	if p.Ragged {
		args.Seqs = new(flashkit.Sequences)
		if j.cut.packedQ {
			args.Seqs.QStarts = lastOnly(p.Batch, p.QLen)
		}
		if j.cut.packedK {
			args.Seqs.KVStarts = lastOnly(p.Batch, p.KVLen)
		}
	}
	if err := p.Check(j.pass, &args); err != nil {
		return err
	}
	if err := j.checkPairs(); err != nil || j.dev == nil {
		return err
	}
	for _, a := range flashkit.Arguments() {
		if t := a.Of(&j.a); a.Role(&j.p, j.pass) != 0 && !t.IsZero() && !j.dev.Holds(*t) {
			return &flashkit.ProblemError{Field: a.Name, Value: "elsewhere", Reason: "must lie on the rank's device"}
		}
	}
	return nil
}

// lastOnly returns the starts of packed sequences. The number of sequences is seqs. All n rows
// belong to the last sequence.
func lastOnly(seqs, n int) []int32 {
	s := make([]int32, seqs+1)
	s[seqs] = int32(n)
	return s
}

// checkPairs returns an error unless Bias, DBias and Mask have the rank's rows and all keys.
func (j *job) checkPairs() error {
	score := j.p.Score
	for _, x := range [...]struct {
		name   string
		t      flashkit.Tensor
		asked  bool
		option bool
		types  [2]flashkit.DType
	}{
		{"Bias", j.a.Bias, score.Bias, false, [2]flashkit.DType{j.p.DType, flashkit.Float32}},
		{"Mask", j.a.Mask, score.Mask, false, [2]flashkit.DType{flashkit.Bool, flashkit.Bool}},
		{"DBias", j.a.DBias, score.Bias && j.pass == flashkit.PassBackward, true, [2]flashkit.DType{j.a.Bias.DType(), j.a.Bias.DType()}},
	} {
		s, t := x.t.Shape(), x.t.DType()
		want := [4]int{j.p.Batch, j.p.Heads, j.pairRows(), j.p.KVLen}
		switch {
		case x.t.IsZero() && (!x.asked || x.option), x.name == "DBias" && j.pass == flashkit.PassForward:
			continue
		case x.t.IsZero():
			return &flashkit.ProblemError{Field: x.name, Value: "none", Reason: "the tensor is missing"}
		case !x.asked:
			return &flashkit.ProblemError{Field: x.name, Value: "given", Reason: "the problem does not say that it has one"}
		case t != x.types[0] && t != x.types[1]:
			return &flashkit.ProblemError{Field: x.name + ".dtype", Value: t.String(), Reason: "must be " + x.types[0].String() + " or " + x.types[1].String()}
		case x.t.Owner() != nil && j.dev == nil:
			return &flashkit.ProblemError{Field: x.name, Value: x.t.Owner().Device(), Reason: "must lie where Q does, on the host"}
		case x.name == "DBias" && s != j.a.Bias.Shape():
			return &flashkit.ProblemError{Field: "DBias.shape", Value: fmt.Sprint(s), Reason: fmt.Sprintf("must be that of Bias, %v", j.a.Bias.Shape())}
		}
		last := s[3]
		for d, n := range s {
			if n != want[d] && (n != 1 || d == 3) {
				return &flashkit.ProblemError{Field: x.name + ".shape", Value: fmt.Sprint(s), Reason: fmt.Sprintf("must be %v, the rank's rows and all keys, or 1 in place of any number but the last", want)}
			}
			if stride := x.t.Strides()[d]; stride < 0 {
				return &flashkit.ProblemError{Field: x.name + ".strides", Value: strconv.Itoa(stride), Reason: "must not be negative"}
			} else if d < 3 {
				last += (n - 1) * stride
			}
		}
		if !isEmpty(x.t) && last > x.t.Len() {
			return &flashkit.ProblemError{Field: x.name + ".len", Value: strconv.Itoa(x.t.Len()), Reason: fmt.Sprintf("is too short for shape %v with strides %v", s, x.t.Strides())}
		}
	}
	return nil
}

func (j *job) pairRows() int { return extent(j.cut.rows[j.rank], false) }

// Layout of a record, which ranks exchange before a call.
const (
	recordWrong = 0   // 1 if the text is an error
	recordBias  = 1   // row state of Bias on this rank
	recordMask  = 2   // row state of Mask
	recordHash  = 3   // hash of the request
	recordLen   = 35  // length of the text
	recordName  = 37  // name of the kernel that rank 0 of an ordered Ring picks, ended by a zero byte
	recordText  = 101 // text of the request, or of the error
	recordSize  = 576
)

// Row states of a Bias or Mask on one rank.
const (
	rowsOpen   = iota // one row, and the rank has only one query row: unknown whether the row repeats
	rowsOwn           // several rows: the rank's own
	rowsRepeat        // one row that repeats for all rows of the rank
)

// agree gathers the requests of all ranks as records. It returns an error on every rank unless all
// requests are valid and equal. wrong is the error of this rank's request, or nil if this request
// is valid.
func (j *job) agree(ctx context.Context, wrong error) error {
	j.record = j.newRecord(wrong)
	if n := len(j.record) * j.size; len(j.all) != n {
		j.all = make([]byte, n)
	}
	if err := j.watch(Progress{From: -1}, func() error { return j.group.Gather(ctx, j.record, j.all) }); err != nil {
		if wrong != nil {
			return wrong
		}
		return err
	}
	if wrong != nil {
		return wrong
	}
	of := func(r int) []byte { return j.all[r*recordSize:][:recordSize] }
	text := func(r int) string {
		x := of(r)
		return string(x[recordText:][:binary.LittleEndian.Uint16(x[recordLen:])])
	}
	for r := range j.size {
		if of(r)[recordWrong] != 0 {
			return &RankError{r, errors.New(text(r))}
		}
	}
	for r := range j.size {
		if !bytes.Equal(of(r)[recordHash:recordLen], of(0)[recordHash:recordLen]) {
			return &RankError{r, fmt.Errorf("was asked for %s, rank 0 for %s%s", text(r), text(0), differing(text(r), text(0)))}
		}
	}
	return j.applyRecords(of)
}

// differing names the fields in which the problems of two requests differ, as the end of an error. It
// returns "" if the difference is not in the problems.
func differing(a, b string) string {
	x, errA := flashkit.ParseProblem(strings.Fields(a + " -")[0])
	y, errB := flashkit.ParseProblem(strings.Fields(b + " -")[0])
	if errA != nil || errB != nil {
		return ""
	}
	if names := differingFields("", reflect.ValueOf(x), reflect.ValueOf(y)); names != nil {
		return ": the difference is in " + strings.Join(names, ", ")
	}
	return ""
}

func differingFields(of string, x, y reflect.Value) (names []string) {
	for i := range x.NumField() {
		name := of + x.Type().Field(i).Name
		if f := x.Field(i); f.Kind() == reflect.Struct && name == "Score" {
			names = append(names, differingFields(name+".", f, y.Field(i))...)
		} else if !f.Equal(y.Field(i)) {
			names = append(names, name)
		}
	}
	return names
}

// applyRecords derives from the records the choices that must be equal on all ranks: whether Bias
// and Mask repeat over rows, and the kernel of an ordered Ring.
func (j *job) applyRecords(record func(int) []byte) error {
	var err error
	if j.biasRepeats, err = j.repeats("Bias", recordBias, record); err != nil {
		return err
	}
	if j.maskRepeats, err = j.repeats("Mask", recordMask, record); err != nil {
		return err
	}
	for _, x := range [...]struct {
		t       flashkit.Tensor
		repeats bool
	}{{j.a.Bias, j.biasRepeats}, {j.a.Mask, j.maskRepeats}} {
		if j.p.Ragged && j.p.Batch > 1 && x.t.Shape()[0] == 1 && !x.repeats && j.size > 1 {
			return j.unsupported("does not support a bias or mask of rows that are the same for all sequences, which are cut apart")
		}
	}
	if !j.o.Ordered {
		return nil
	}
	name, _, _ := bytes.Cut(record(0)[recordName:recordText], []byte{0})
	if j.kernel = j.plan.partKernel[j.pass]; j.kernel.Run != nil && j.kernel.Name == string(name) {
		return nil
	}
	for _, k := range j.runner.(Chooser).Kernels() {
		if k.Name == string(name) {
			if j.kernel = k; j.dev != nil {
				j.kernel = j.dev.PartOf(k, j.wholeProblem())
			}
			j.plan.partKernel[j.pass] = j.kernel
			return nil
		}
	}
	return fmt.Errorf("ring: this rank has no kernel %s, which rank 0 picks", name)
}

// newRecord returns the record of this rank's request. If wrong is not nil, the record's text is
// that error.
func (j *job) newRecord(wrong error) []byte {
	x := make([]byte, recordSize)
	text := fmt.Sprintf("%v %v", j.p, j.pass)
	if j.o.Ordered {
		text += " in order"
	}
	for _, t := range [...]flashkit.Tensor{j.a.Bias, j.a.Mask} {
		if s := t.Shape(); !t.IsZero() {
			text += fmt.Sprintf(" [%d %d ...]", s[0], s[1])
		}
	}
	if j.pass == flashkit.PassBackward {
		text += fmt.Sprintf(" dbias=%v dsink=%v", !j.a.DBias.IsZero(), !j.a.DSink.IsZero())
	}
	if j.p.Score.Dropout != 0 {
		text += fmt.Sprintf(" seed %d origin %v", j.a.Seed, j.a.Origin)
	}
	hash := sha256.New()
	hash.Write([]byte(text))
	if s := j.a.Seqs; s != nil {
		for _, list := range [][]int32{s.QLens, s.KVLens, s.QStarts, s.KVStarts} {
			binary.Write(hash, binary.LittleEndian, int64(len(list))) // a hash never fails
			binary.Write(hash, binary.LittleEndian, list)
		}
		text += fmt.Sprintf(" sequences %x", hash.Sum(nil)[:4])
	}
	copy(x[recordHash:], hash.Sum(nil))
	x[recordBias], x[recordMask] = j.rowsSeen(j.a.Bias), j.rowsSeen(j.a.Mask)
	copy(x[recordName:recordText-1], j.kernel.Name)
	if wrong != nil {
		x[recordWrong], text = 1, wrong.Error()
	}
	n := copy(x[recordText:], text)
	binary.LittleEndian.PutUint16(x[recordLen:], uint16(n))
	return x
}

// rowsSeen returns the row state of this rank's Bias or Mask.
func (j *job) rowsSeen(t flashkit.Tensor) byte {
	switch n := t.Shape()[2]; {
	case j.plan == nil || n == 1 && j.pairRows() == 1:
		return rowsOpen
	case n == 1:
		return rowsRepeat
	}
	return rowsOwn
}

// repeats reports whether the records describe a Bias or Mask that repeats over rows. If no rank
// has enough rows to decide that, a call with DBias is unsupported.
func (j *job) repeats(name string, at int, record func(int) []byte) (bool, error) {
	var seen [rowsRepeat + 1]bool
	for r := range j.size {
		seen[record(r)[at]] = true
	}
	if seen[rowsOwn] && seen[rowsRepeat] {
		return false, &flashkit.ProblemError{Field: name + ".shape", Value: "one row", Reason: "must be alike on all ranks: one row for all, or the rank's own"}
	}
	if !seen[rowsOwn] && !seen[rowsRepeat] && j.p.QLen > 1 && !j.a.DBias.IsZero() && j.pass == flashkit.PassBackward {
		return false, j.unsupported("does not support a D" + name + " of one row where no rank has two: it may be for all rows or for the rank's own")
	}
	return seen[rowsRepeat], nil
}

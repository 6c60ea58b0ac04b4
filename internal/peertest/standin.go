package peertest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/flashkit-go/flashkit/internal/nccl"
)

// A StandIn simulates nonblocking NCCL among the ranks of one process, without GPUs. A communicator
// is complete when all ranks have requested it. The first message from a rank to another is
// enqueued when both ranks have started it. Later messages are enqueued at once, and keep their
// stream busy until the other rank sends or receives them. If a rank aborts, the other ranks keep
// waiting, as over NVLink.
type StandIn struct {
	Move func(to, from uintptr, bytes int) error // copies device memory
	Pend func(stream uintptr) (done func())      // keeps a stream busy

	// FailInit, unless nil, returns the error of a rank's Init. Async then returns this error.
	FailInit func(rank int) error

	// SameID gives every rank the same ID, as NCCL_COMM_ID does.
	SameID bool

	// Remote makes an abort known to the other ranks, as over a network. Their errors do not name
	// the rank that aborted.
	Remote bool

	mu     sync.Mutex
	made   uint64
	next   nccl.Comm
	worlds map[nccl.ID]*world
	comms  map[nccl.Comm]*member
	moved  int
}

// A world holds the ranks that called Init with the same ID.
type world struct {
	id      nccl.ID
	live    int // number of its communicators
	members []*member
	met     map[[2]int]bool    // pairs of ranks with earlier messages: from, to
	waiting map[[2]int][]*post // unmatched halves of messages
	left    int
}

// A member is one communicator of a rank.
type member struct {
	*world
	rank, channels int
	err            error
	connecting     int // number of first messages that the other rank has not started
	posts          []*post
	leaving        bool
	split          bool // made by Split
	splits         int  // the number of communicators that Split made of this one
}

// A post is the sender's half or the receiver's half of a message.
type post struct {
	of        *member
	peer      int
	send      bool
	at        uintptr
	bytes     int
	first     bool
	done      func()
	cancelled bool
}

// Name names the stand-in.
func (s *StandIn) Name() string { return "a stand-in for NCCL" }

// Version is the simulated library's version.
func (s *StandIn) Version() int { return 23203 }

// UniqueID returns consecutive IDs.
func (s *StandIn) UniqueID() (id nccl.ID, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.SameID {
		s.made++
	}
	binary.LittleEndian.PutUint64(id[100:], s.made+1)
	return id, nil
}

// Init adds a rank to the world of id and returns the rank's communicator.
func (s *StandIn) Init(ranks int, id nccl.ID, rank, channels int) (nccl.Comm, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.worlds == nil {
		s.worlds, s.comms = map[nccl.ID]*world{}, map[nccl.Comm]*member{}
	}
	w := s.worlds[id]
	if w == nil {
		w = &world{id: id, members: make([]*member, ranks), met: map[[2]int]bool{}, waiting: map[[2]int][]*post{}}
		s.worlds[id] = w
	}
	if id == (nccl.ID{}) || len(w.members) != ranks || rank < 0 || rank >= ranks || w.members[rank] != nil || channels < 1 {
		return 0, &nccl.Error{Call: "ncclCommInitRankConfig", Code: 4, Text: fmt.Sprintf("rank %d of %d", rank, ranks)}
	}
	m := &member{world: w, rank: rank, channels: channels}
	if s.FailInit != nil {
		m.err = s.FailInit(rank)
	}
	if m.err == nil {
		w.members[rank] = m
	}
	s.next++
	w.live++
	s.comms[s.next] = m
	return s.next, nil
}

// Split makes a second communicator for a rank. The new communicator is complete when all ranks
// have requested it.
func (s *StandIn) Split(c nccl.Comm, rank, channels int) (*nccl.Comm, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.comms[c]
	if m == nil || m.split || m.rank != rank || m.channels != channels {
		return nil, &nccl.Error{Call: "ncclCommSplit", Code: 4, Text: fmt.Sprintf("rank %d", rank)}
	}
	m.splits++
	m.live++
	s.next++
	s.comms[s.next] = &member{world: m.world, rank: rank, channels: channels, split: true}
	return &[]nccl.Comm{s.next}[0], nil
}

// Async reports whether the rank's last operation is complete, or returns the error of a failed
// operation.
func (s *StandIn) Async(c nccl.Comm) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.comms[c]
	switch {
	case m == nil:
		return false, &nccl.Error{Call: "ncclCommGetAsyncError", Code: 4, Text: "no communicator"}
	case m.err != nil:
		return false, m.err
	case m.leaving:
		return m.left == len(m.members), nil
	}
	for _, other := range m.members {
		if other == nil || other.splits < m.splits {
			return false, nil
		}
	}
	return m.connecting == 0, nil
}

// Group enqueues f's messages one by one.
func (s *StandIn) Group(f func() error) error { return f() }

// Send posts the sender's half of a message.
func (s *StandIn) Send(from uintptr, bytes, to int, c nccl.Comm, stream nccl.Stream) error {
	return s.post(&post{peer: to, send: true, at: from, bytes: bytes}, c, stream)
}

// Receive posts the receiver's half of a message.
func (s *StandIn) Receive(to uintptr, bytes, from int, c nccl.Comm, stream nccl.Stream) error {
	return s.post(&post{peer: from, at: to, bytes: bytes}, c, stream)
}

func (s *StandIn) post(p *post, c nccl.Comm, stream nccl.Stream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.comms[c]
	if m == nil || stream == 0 || p.bytes <= 0 || p.peer < 0 || p.peer >= len(m.members) {
		return &nccl.Error{Call: "ncclSend, ncclRecv", Code: 4, Text: fmt.Sprintf("%d bytes for rank %d", p.bytes, p.peer)}
	}
	p.of = m
	line := [2]int{p.peer, m.rank}
	if p.send {
		line = [2]int{m.rank, p.peer}
	}
	list := m.waiting[line]
	if len(list) > 0 && list[0].send != p.send {
		m.waiting[line], m.met[line] = list[1:], true
		return s.match(list[0], p)
	}
	if p.first = !m.met[line]; p.first && m.split {
		return &nccl.Error{Call: "ncclGroupEnd", Code: 5, Text: fmt.Sprintf("ranks %d and %d never met", line[0], line[1])}
	} else if p.first {
		m.connecting++
	} else {
		p.done = s.Pend(uintptr(stream))
	}
	m.waiting[line], m.posts = append(list, p), append(m.posts, p)
	return nil
}

// match moves the bytes of a message whose two halves are posted.
func (s *StandIn) match(a, b *post) error {
	to, from := a, b
	if a.send {
		to, from = b, a
	}
	err := error(&nccl.Error{Call: "ncclGroupEnd", Code: 5, Text: fmt.Sprintf("%d bytes were sent, %d are received", from.bytes, to.bytes)})
	if to.bytes == from.bytes {
		err = s.Move(to.at, from.at, to.bytes)
	}
	if err != nil {
		a.of.err, b.of.err = err, err
	}
	s.moved += to.bytes
	a.end()
	return nil
}

func (p *post) end() {
	if p.cancelled {
		return
	}
	p.cancelled = true
	if p.first {
		p.of.connecting--
	} else {
		p.done()
	}
}

// Finalize makes the rank leave the world. Async then reports completion when all ranks have left.
func (s *StandIn) Finalize(c nccl.Comm) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.comms[c]
	if m == nil || m.leaving {
		return &nccl.Error{Call: "ncclCommFinalize", Code: 4, Text: "no communicator"}
	}
	if m.leaving = true; !m.split {
		m.left++
	}
	return nil
}

// Destroy frees a communicator that all ranks have left.
func (s *StandIn) Destroy(c nccl.Comm) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.comms[c]
	if m == nil || !m.leaving || !m.split && m.left != len(m.members) {
		return &nccl.Error{Call: "ncclCommDestroy", Code: 5, Text: "in use"}
	}
	s.forget(c, m)
	return nil
}

// forget removes a communicator. With the last communicator of an ID, it removes the ID's world.
func (s *StandIn) forget(c nccl.Comm, m *member) {
	delete(s.comms, c)
	if m.live--; m.live == 0 {
		delete(s.worlds, m.id)
	}
}

// Abort ends the waits of the rank's streams. The other ranks keep waiting unless Remote is set.
func (s *StandIn) Abort(c nccl.Comm) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.comms[c]
	if m == nil {
		return &nccl.Error{Call: "ncclCommAbort", Code: 4, Text: "no communicator"}
	}
	s.forget(c, m)
	for line, list := range m.waiting {
		m.waiting[line] = slices.DeleteFunc(list, func(p *post) bool { return p.of == m })
	}
	for _, p := range m.posts {
		p.end()
	}
	for _, other := range m.members {
		if s.Remote && other != nil && other != m && other.err == nil {
			other.err = &nccl.Error{Call: "NCCL", Code: 6, Text: "remote process exited or there was a network error"}
		}
	}
	return nil
}

// Moved returns the bytes of all messages, and an error if a communicator was not released.
func (s *StandIn) Moved() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.comms); n > 0 {
		return s.moved, errors.New(fmt.Sprint(n, " communicators were not given back"))
	}
	return s.moved, nil
}

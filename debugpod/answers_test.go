package debugpod

import (
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// FuzzAnswers: whatever a node sends in the helper's place, and however it is cut, the client neither crashes nor takes
// a second last answer, and what it hands on does not depend on the cuts.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"protocol":1,"done":true}`+"\n"), 3)
	f.Add([]byte(`{"protocol":1}`+"\n"+`{"protocol":1,"error":{"code":"internal","message":"x"}}`+"\n"), 20)
	f.Add([]byte(`{"protocol":1,"done":true}`+"\n"+`{"protocol":1,"done":true}`+"\n"), 1)
	f.Fuzz(func(t *testing.T, raw []byte, cut int) {
		whole, inParts := took(raw, len(raw)), took(raw, cut)
		if whole != inParts {
			t.Errorf("%q: as a whole %+v, in two parts %+v", raw, whole, inParts)
		}
		if whole.last > 1 {
			t.Errorf("%q: %d last answers", raw, whole.last)
		}
	})
}

type taken struct {
	answers, last int
	final, broken bool
}

func took(raw []byte, cut int) (all taken) {
	a := &answers{each: func(answer api.Answer) {
		all.answers++
		if answer.Done || answer.Error != nil {
			all.last++
		}
	}}
	cut = min(max(cut, 0), len(raw))
	_, _ = a.Write(raw[:cut])
	_, _ = a.Write(raw[cut:])
	final, broken := a.close()
	all.final, all.broken = final != nil, broken != nil
	return all
}

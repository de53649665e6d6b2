package objects

import (
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// Somebody who changes the object just while it is looked at does not stand in the way: a Node that is new is written
// by many.
func TestCheckBesideOthers(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.owned()
	p := s.ours()
	looks := 0
	s.PrependReactor("get", "deployments", func(action clienttesting.Action) (bool, runtime.Object, error) {
		get := action.(clienttesting.GetAction)
		read, err := s.Tracker().Get(get.GetResource(), get.GetNamespace(), get.GetName())
		if looks++; err != nil || looks > 3 {
			return true, read, err
		}
		// What was read is old as soon as it is there.
		was := read.(*unstructured.Unstructured).DeepCopy()
		version, err := strconv.Atoi(was.GetResourceVersion())
		if err != nil {
			return true, nil, err
		}
		now := was.DeepCopy()
		now.SetResourceVersion(strconv.Itoa(version + 1))
		return true, was, s.Tracker().Update(get.GetResource(), now, get.GetNamespace())
	})
	if err := p.Check(t.Context()); err != nil || looks != 4 {
		t.Errorf("looked %d times, and then: %v", looks, err)
	}
}

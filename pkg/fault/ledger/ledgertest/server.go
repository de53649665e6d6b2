// Package ledgertest is an API server in memory for tests of what is recorded, locked and undone. Beyond client-go's
// fake it has resource versions with conflicts, UIDs, delete preconditions and namespaces that must exist, and it lets
// a test fail any request before or after it took effect. It has no field selectors, admission or controllers: for
// these take a real cluster.
package ledgertest

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
)

// User is who clients are, for SelfSubjectReviews.
const User = "alice"

// Server is the API server. Its fields are set before the first request.
type Server struct {
	// Denied refuses what it returns true for: SelfSubjectAccessReviews answer no, and requests are forbidden.
	Denied func(authorizationv1.ResourceAttributes) bool

	mu      sync.Mutex
	tracker clienttesting.ObjectTracker
	version int
}

// Call is one request.
type Call struct {
	Verb, Resource, Subresource, Namespace, Name string
	// Object is what a create or an update sends.
	Object runtime.Object
}

// Write reports whether the request changes something in the cluster.
func (c Call) Write() bool {
	switch c.Verb {
	case "create":
		return c.Resource != "selfsubjectaccessreviews" && c.Resource != "selfsubjectreviews"
	case "update", "patch", "delete", "delete-collection":
		return true
	}
	return false
}

func (c Call) String() string {
	resource := c.Resource
	if c.Subresource != "" {
		resource += "/" + c.Subresource
	}
	return fmt.Sprintf("%s %s %s/%s", c.Verb, resource, c.Namespace, c.Name)
}

// Hooks see every request of a client. One that returns an error makes the request fail with it.
type Hooks struct {
	Before func(Call) error // the request does not reach the cluster
	After  func(Call) error // the request took effect, and the answer is lost
}

// New returns a server with the namespaces default and kube-system, and these objects.
func New(t testing.TB, objects ...runtime.Object) *Server {
	t.Helper()
	s := &Server{tracker: clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())}
	for _, name := range []string{"default", "kube-system"} {
		objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, object := range objects {
		s.stamp(object, true)
		if err := s.tracker.Add(object); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// Client returns a client of its own.
func (s *Server) Client(hooks Hooks) *fake.Clientset {
	client := &fake.Clientset{}
	forward := clienttesting.ObjectReaction(s.tracker)
	client.AddReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		call := callOf(action)
		if hooks.Before != nil {
			if err := hooks.Before(call); err != nil {
				return true, nil, err
			}
		}
		result, err := s.serve(action, call, forward)
		if err == nil && hooks.After != nil {
			err = hooks.After(call)
		}
		return true, result, err
	})
	return client
}

func (s *Server) serve(
	action clienttesting.Action, call Call, forward clienttesting.ReactionFunc,
) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	group := action.GetResource().GroupResource()
	switch review := call.Object.(type) {
	case *authenticationv1.SelfSubjectReview:
		review.Status.UserInfo.Username = User
		return review, nil
	case *authorizationv1.SelfSubjectAccessReview:
		review.Status.Allowed = s.Denied == nil ||
			review.Spec.ResourceAttributes.Verb != "*" && !s.Denied(*review.Spec.ResourceAttributes)
		return review, nil
	}
	attributes := authorizationv1.ResourceAttributes{
		Verb: call.Verb, Group: group.Group, Resource: call.Resource, Subresource: call.Subresource,
		Namespace: call.Namespace,
	}
	if s.Denied != nil && s.Denied(attributes) {
		return nil, apierrors.NewForbidden(group, call.Name, fmt.Errorf("%s may not", User))
	}
	switch call.Verb {
	case "create":
		if err := s.admit(call); err != nil {
			return nil, err
		}
		s.stamp(call.Object, true)
	case "update":
		if err := s.precondition(action, group, call, versionOf(call.Object), ""); err != nil {
			return nil, err
		}
		s.stamp(call.Object, false)
	case "delete":
		if remove, ok := action.(clienttesting.DeleteActionImpl); ok && remove.DeleteOptions.Preconditions != nil {
			p := remove.DeleteOptions.Preconditions
			if err := s.precondition(action, group, call, value(p.ResourceVersion), value(p.UID)); err != nil {
				return nil, err
			}
		}
	}
	_, result, err := forward(action)
	if err == nil && call.Verb == "create" && call.Resource == "namespaces" {
		err = s.tracker.Add(
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: call.Name, Name: "default"}},
		)
	}
	return result, err
}

// admit refuses what would go into a namespace that does not exist.
func (s *Server) admit(call Call) error {
	if call.Namespace == "" {
		return nil
	}
	_, err := s.tracker.Get(corev1.SchemeGroupVersion.WithResource("namespaces"), "", call.Namespace)
	return err
}

func (s *Server) precondition(
	action clienttesting.Action, group schema.GroupResource, call Call, version, uid string,
) error {
	object, err := s.tracker.Get(action.GetResource(), call.Namespace, call.Name)
	if err != nil {
		return err
	}
	stored, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	if version != "" && version != stored.GetResourceVersion() || uid != "" && uid != string(stored.GetUID()) {
		return apierrors.NewConflict(group, call.Name, fmt.Errorf("the object has been modified"))
	}
	return nil
}

func (s *Server) stamp(object runtime.Object, created bool) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return
	}
	s.version++
	accessor.SetResourceVersion(strconv.Itoa(s.version))
	if created && accessor.GetUID() == "" {
		accessor.SetUID(types.UID(fmt.Sprintf("uid-%d", s.version)))
		accessor.SetCreationTimestamp(metav1.NewTime(time.Unix(int64(s.version), 0)))
	}
}

func callOf(action clienttesting.Action) Call {
	call := Call{
		Verb: action.GetVerb(), Resource: action.GetResource().Resource, Subresource: action.GetSubresource(),
		Namespace: action.GetNamespace(),
	}
	switch a := action.(type) {
	case clienttesting.CreateAction: // updates too: they have the same methods
		call.Object = a.GetObject()
		if accessor, err := meta.Accessor(call.Object); err == nil {
			call.Name = accessor.GetName()
		}
	case interface{ GetName() string }:
		call.Name = a.GetName()
	}
	return call
}

func versionOf(object runtime.Object) string {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return ""
	}
	return accessor.GetResourceVersion()
}

func value[T ~string](p *T) string {
	if p == nil {
		return ""
	}
	return string(*p)
}

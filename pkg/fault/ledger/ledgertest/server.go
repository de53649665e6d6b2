// Package ledgertest provides an in-memory API server for tests of records, locks, and undo. In addition to the
// features of client-go's fake, it supports resource versions with conflicts, UIDs, delete preconditions, and
// namespaces that must exist. A test can make any request fail before or after it takes effect. It does not support
// field selectors, admission, or controllers; tests of these need a real cluster.
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

// User is the user name that SelfSubjectReviews return.
const User = "alice"

// Server is the API server. Set its fields before the first request.
type Server struct {
	// Denied reports whether to deny a request. It applies to both requests and SelfSubjectAccessReviews.
	Denied func(authorizationv1.ResourceAttributes) bool

	mu      sync.Mutex
	tracker clienttesting.ObjectTracker
	version int
}

// Call is a request.
type Call struct {
	Verb, Resource, Subresource, Namespace, Name string
	// Object is the body of a create or update request.
	Object runtime.Object
}

// Write reports whether the request changes the cluster.
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

// Hooks are called for every request from a client. If a hook returns an error, the request fails with that error.
type Hooks struct {
	Before func(Call) error // an error prevents the request from reaching the cluster
	After  func(Call) error // an error means that the request took effect and the response was lost
}

// New returns a server with the namespaces default and kube-system and the given objects.
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

// Client returns a new client of the server.
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

// admit rejects the creation of objects in a namespace that does not exist.
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
	case clienttesting.CreateAction: // including updates, because their actions have the same methods
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

package objects

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// Creation creates objects: Namespaces first, then the others in the given order.
type Creation struct {
	Dynamic dynamic.Interface
	Mapper  meta.RESTMapper
	Objects []*unstructured.Unstructured
	// Target is locked during the change. The zero value means the namespace of the objects or, if there is none, the
	// first object.
	Target ledger.Target
	// LedgerNamespace is a namespace in which nothing may be created. Empty means ledger.DefaultNamespace.
	LedgerNamespace string
	// MarksOnly disables the ClusterRole that keeps the seal, so that fewer permissions are needed. The undo then does
	// not delete an object whose mark another client has removed.
	MarksOnly bool
	// ShowRun labels the objects with their run and this tool. Objects of exercises are not labeled, because they must
	// not reveal who created them.
	ShowRun bool
}

// Change returns the change for use in a fault.Plan. Check reports its errors in advance.
func (c *Creation) Change(action string) fault.Change {
	return fault.Change{Target: c.target(), Action: action, Undo: ledger.Undo{Kind: UndoKind}, Apply: c.apply}
}

// target returns the target that two runs must not change at the same time.
func (c *Creation) target() ledger.Target {
	if c.Target != (ledger.Target{}) || len(c.Objects) == 0 {
		return c.Target
	}
	namespace := ""
	for _, o := range c.Objects {
		if o.GetKind() == "Namespace" && o.GetAPIVersion() == "v1" {
			return ledger.Target{Kind: "Namespace", Name: o.GetName()}
		}
		if namespace == "" {
			namespace = o.GetNamespace()
		}
	}
	if namespace != "" {
		return ledger.Target{Kind: "Namespace", Name: namespace}
	}
	return ledger.Target{Kind: c.Objects[0].GetKind(), Name: c.Objects[0].GetName()}
}

// prepare returns the objects, Namespaces first, or an error that contains all problems.
func (c *Creation) prepare() ([]*unstructured.Unstructured, *Data, error) {
	if c.Dynamic == nil || c.Mapper == nil {
		return nil, nil, errNoCluster
	}
	if len(c.Objects) == 0 || len(c.Objects) > maxObjects {
		return nil, nil, fmt.Errorf("invalid number of objects: %s; must be 1 to %d",
			count.Of(len(c.Objects), "object"), maxObjects)
	}
	manifests := make([]*unstructured.Unstructured, 0, len(c.Objects))
	d := &Data{}
	var problems []error
	for _, first := range []bool{true, false} {
		for _, manifest := range c.Objects {
			if isNamespace := manifest.GroupVersionKind().
				GroupKind() == (schema.GroupKind{Kind: "Namespace"}); isNamespace != first {
				continue
			}
			o, err := objectOf(c.Mapper, manifest)
			if err == nil {
				err = errors.Join(o.mayBeCreated(c.LedgerNamespace), checkManifest(o, manifest))
			}
			if err == nil && slices.ContainsFunc(d.Created, o.same) {
				err = fmt.Errorf("%s is specified twice", o)
			}
			if err != nil {
				problems = append(problems, err)
				continue
			}
			o.Sum = patch.Sum(kubeedit.Encode(manifest.Object))
			d.Created, manifests = append(d.Created, o), append(manifests, manifest.DeepCopy())
		}
	}
	return manifests, d, errors.Join(problems...)
}

// Check returns the errors that the change would cause. It is for use in Plan.Checks and changes nothing. If the
// namespace does not exist yet, the API server validates an object only when the object is created.
func (c *Creation) Check(ctx context.Context) error {
	manifests, d, err := c.prepare()
	if err != nil {
		return err
	}
	problems := make([]error, len(manifests))
	var group errgroup.Group
	group.SetLimit(8)
	for i, manifest := range manifests {
		group.Go(func() error { problems[i] = c.try(ctx, d.Created[i], manifest); return nil })
	}
	_ = group.Wait() // errors are in problems, by object
	return errors.Join(problems...)
}

func (c *Creation) try(ctx context.Context, o Object, manifest *unstructured.Unstructured) error {
	_, err := c.client(o).Create(ctx, manifest, metav1.CreateOptions{
		FieldManager: ManagerCreate, FieldValidation: metav1.FieldValidationStrict, DryRun: []string{metav1.DryRunAll},
	})
	switch {
	case apierrors.IsNotFound(err) && o.Namespace != "": // the namespace has not been created yet
		return nil
	case apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "does not support dry run"):
		// The error is about a webhook, not about the object.
		return nil
	}
	return c.explain(ctx, o, err)
}

// explain returns the error for an object that could not be created.
func (c *Creation) explain(ctx context.Context, o Object, err error) error {
	if !apierrors.IsAlreadyExists(err) {
		if err != nil {
			err = fmt.Errorf("create %s: %w", o, err)
		}
		return err
	}
	if live, getErr := c.client(o).Get(ctx, o.Name, metav1.GetOptions{}); getErr == nil &&
		live.GetDeletionTimestamp() != nil {
		return fmt.Errorf("%s is still being deleted: wait until it no longer exists", o)
	}
	return fmt.Errorf("%s already exists: delete it, or use another name", o)
}

func (c *Creation) client(o Object) dynamic.ResourceInterface { return reach(c.Dynamic, o) }

func reach(client dynamic.Interface, o Object) dynamic.ResourceInterface {
	if o.Namespace == "" {
		return client.Resource(o.GVR())
	}
	return client.Resource(o.GVR()).Namespace(o.Namespace)
}

// apply records the objects, creates them, and records their UIDs. If the client dies in between, the ledger contains
// the names of the objects, and the objects have the mark derived from the ledger's data.
func (c *Creation) apply(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
	manifests, d, err := c.prepare()
	if err != nil {
		return nil, err
	}
	run := r.Run()
	d.Sealed = !c.MarksOnly && d.needsKeeper(namespaces(run))
	step := ""
	save := func() error {
		data := kubeedit.Encode(d)
		return r.Save(ctx, func(s *ledger.Step) { step, s.Undo.Data = s.ID, data })
	}
	if err := save(); err != nil {
		return nil, err
	}
	sealed := d.seal(run.ID, step)
	if d.Sealed {
		if err := keeper(c.Dynamic).Keep(ctx, sealed); err != nil {
			return nil, err
		}
	}
	var evidence []ledger.Evidence
	for i, manifest := range manifests {
		o := &d.Created[i]
		r.Progress("creating " + o.String())
		proof, err := c.create(ctx, o, manifest, run.ID, o.mark(sealed))
		if err != nil {
			return evidence, errors.Join(err, save()) // save the UIDs for the undo that follows
		}
		evidence = append(evidence, proof)
	}
	return evidence, save()
}

func (c *Creation) create(
	ctx context.Context, o *Object, manifest *unstructured.Unstructured, run, instance string,
) (ledger.Evidence, error) {
	labels := manifest.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[LabelInstance] = instance
	if c.ShowRun {
		labels[ledger.LabelRun], labels[ledger.LabelManagedBy] = run, ledger.ManagedBy
	}
	manifest.SetLabels(labels)
	made, err := c.client(*o).Create(ctx, manifest,
		metav1.CreateOptions{FieldManager: ManagerCreate, FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		return ledger.Evidence{}, c.explain(ctx, *o, err)
	}
	o.UID = string(made.GetUID())
	if made.GetLabels()[LabelInstance] != instance {
		return ledger.Evidence{}, fmt.Errorf(
			"create %s: an admission policy changes the label %s, which identifies the object: exclude the object from the policy",
			o, LabelInstance,
		)
	}
	if o.isNamespace() {
		err = c.awaitAccount(ctx, o.Name)
	}
	return ledger.Evidence{Source: o.String(), Time: time.Now().UTC(), Text: "created, uid " + o.UID}, err
}

// accountTimeout limits the time until a new namespace has its default service account. The account is usually created
// within 10 ms.
const accountTimeout = 15 * time.Second

// awaitAccount waits for the service account that every pod needs. The API server rejects pods that are created before
// the account.
func (c *Creation) awaitAccount(ctx context.Context, namespace string) error {
	accounts := c.Dynamic.Resource(
		schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"},
	).Namespace(namespace)
	var last error
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, accountTimeout, true,
		func(ctx context.Context) (bool, error) {
			_, last = accounts.Get(ctx, "default", metav1.GetOptions{})
			// A user who may not read service accounts gets the error from the first pod.
			return last == nil || apierrors.IsForbidden(last), nil
		})
	if err != nil {
		return fmt.Errorf("wait for the default service account of namespace %q: %w", namespace, last)
	}
	return nil
}

// Permissions returns the permissions for creating the objects and undoing the creation.
func (c *Creation) Permissions() ([]fault.Permission, error) {
	_, d, err := c.prepare()
	if err != nil {
		return nil, err
	}
	var all []fault.Permission
	for _, o := range d.Created {
		for _, verb := range []string{"create", "get", "delete"} {
			all = append(all,
				fault.Permission{Verb: verb, Group: o.Group, Resource: o.Resource, Namespace: o.Namespace})
		}
		if o.isNamespace() {
			all = append(all,
				fault.Permission{Verb: "get", Resource: "serviceaccounts", Namespace: o.Name, Optional: true},
				fault.Permission{Verb: "deletecollection", Resource: "pods", Namespace: o.Name, Optional: true})
		}
	}
	if !c.MarksOnly && d.needsKeeper(nil) {
		all = append(all, keeperPermissions()...)
	}
	return fault.Permissions(all), nil
}

func keeperPermissions() []fault.Permission {
	var all []fault.Permission
	for _, verb := range []string{"create", "get", "delete"} {
		all = append(all, fault.Permission{Verb: verb, Group: groupRBAC, Resource: "clusterroles"})
	}
	return all
}

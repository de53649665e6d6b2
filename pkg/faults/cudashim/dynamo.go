package cudashim

import (
	"fmt"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// dynamoTemplates returns the templates of NVIDIA Dynamo's graphs and components (v1alpha1). Each service has a pod
// spec in extraPodSpec, a separate main container, and its own variables.
func dynamoTemplates(object map[string]any) []Template {
	services := kubeedit.Map(object, kubeedit.Fields("spec", "services"))
	if services == nil {
		if _, component := kubeedit.Get(object, kubeedit.Fields("spec", "dynamoNamespace")); !component {
			if _, component = kubeedit.Get(object, kubeedit.Fields("spec", "extraPodSpec")); !component {
				return nil
			}
		}
		return []Template{dynamoService(object, "", kubeedit.Fields("spec"))}
	}
	var all []Template
	for _, name := range sortedKeys(services) {
		if _, ok := services[name].(map[string]any); ok && name != "" {
			all = append(all, dynamoService(object, "services."+name, kubeedit.Fields("spec", "services", name)))
		}
	}
	return all
}

func dynamoService(object map[string]any, name string, at kubeedit.Path) Template {
	t := Template{
		Name: name, Path: at, spec: at.Then(kubeedit.Field("extraPodSpec")),
		meta: at.Then(kubeedit.Field("extraPodMetadata")),
		env:  at.Then(kubeedit.Field("envs")),
	}
	main := Container{Name: "main", path: t.spec.Then(kubeedit.Field("mainContainer"))}
	main.Image = kubeedit.Text(object, main.path.Then(kubeedit.Field("image")))
	main.GPU = wantsGPU(kubeedit.Map(object, main.path))
	for _, kind := range []string{"limits", "requests"} {
		if gpus, ok := kubeedit.Get(object, at.Then(kubeedit.Fields("resources", kind, "gpu")...)); ok &&
			fmt.Sprint(gpus) != "0" &&
			fmt.Sprint(gpus) != "" {
			main.GPU = true
		}
	}
	t.Containers = append([]Container{main}, containers(object, t.spec)...)
	return t
}

package cudashim

import "fmt"

// dynamoTemplates returns those of NVIDIA Dynamo's graphs and components (v1alpha1): each service has the fields of a
// pod spec in extraPodSpec, its main container apart, and variables of its own.
func dynamoTemplates(object map[string]any) []Template {
	services := getMap(object, path("spec", "services"))
	if services == nil {
		if _, component := get(object, path("spec", "dynamoNamespace")); !component {
			if _, component = get(object, path("spec", "extraPodSpec")); !component {
				return nil
			}
		}
		return []Template{dynamoService(object, "", path("spec"))}
	}
	var all []Template
	for _, name := range sortedKeys(services) {
		if _, ok := services[name].(map[string]any); ok && name != "" {
			all = append(all, dynamoService(object, "services."+name, path("spec", "services", name)))
		}
	}
	return all
}

func dynamoService(object map[string]any, name string, at Path) Template {
	t := Template{
		Name: name, Path: at, spec: at.then(field("extraPodSpec")), meta: at.then(field("extraPodMetadata")),
		env: at.then(field("envs")),
	}
	main := Container{Name: "main", path: t.spec.then(field("mainContainer"))}
	main.Image = getText(object, main.path.then(field("image")))
	main.GPU = wantsGPU(getMap(object, main.path))
	for _, kind := range []string{"limits", "requests"} {
		if gpus, ok := get(object, at.then(path("resources", kind, "gpu")...)); ok && fmt.Sprint(gpus) != "0" &&
			fmt.Sprint(gpus) != "" {
			main.GPU = true
		}
	}
	t.Containers = append([]Container{main}, containers(object, t.spec)...)
	return t
}
